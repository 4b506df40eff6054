/* The probe of tests/engines as a WASI preview 1 command: what probe.py does, with the same words.
 *
 * In: {"do": what, "path": ..., "to": ..., "n": number, "exit": code}. Out: {"did": word}, "ok" or an error's name.
 * No libc, so that it can be kept and read as text. Build: ./build.sh */
#include <stddef.h>
#include <stdint.h>

typedef struct { uint8_t *at; size_t length; } slice;
typedef struct { uint32_t tag, length; } prestat;

#define WASI(name) __attribute__((import_module("wasi_snapshot_preview1"), import_name(name)))
WASI("fd_read") extern int fd_read(int fd, const slice *into, size_t slices, size_t *done);
WASI("fd_write") extern int fd_write(int fd, const slice *from, size_t slices, size_t *done);
WASI("fd_prestat_get") extern int fd_prestat_get(int fd, prestat *what);
WASI("fd_prestat_dir_name") extern int fd_prestat_dir_name(int fd, char *name, size_t length);
WASI("fd_readdir") extern int fd_readdir(int fd, void *into, size_t length, uint64_t from, size_t *done);
WASI("path_open") extern int path_open(int dir, int follow, const char *path, size_t length, int how, uint64_t rights,
                                       uint64_t inherited, int flags, int *fd);
WASI("path_unlink_file") extern int path_unlink_file(int dir, const char *path, size_t length);
WASI("path_create_directory") extern int path_create_directory(int dir, const char *path, size_t length);
WASI("path_rename") extern int path_rename(int dir, const char *path, size_t length, int to, const char *name, size_t n);
WASI("path_link") extern int path_link(int dir, int follow, const char *path, size_t length, int to, const char *name,
                                       size_t n);
WASI("path_symlink") extern int path_symlink(const char *target, size_t n, int dir, const char *path, size_t length);
WASI("path_filestat_set_times") extern int path_filestat_set_times(int dir, int follow, const char *path, size_t length,
                                                                   uint64_t read, uint64_t written, int which);
WASI("environ_sizes_get") extern int environ_sizes_get(size_t *count, size_t *bytes);
WASI("environ_get") extern int environ_get(char **entries, char *text);
WASI("clock_time_get") extern int clock_time_get(int which, uint64_t precision, uint64_t *now);
WASI("poll_oneoff") extern int poll_oneoff(const void *in, void *out, size_t count, size_t *done);
WASI("proc_exit") extern _Noreturn void proc_exit(int code);

enum { READ = 2, WRITE = 64, CREATE = 1, FOLDER = 2, CUT = 8, EIO_ = 29, ENOENT_ = 44, ENOMEM_ = 48, ENOSYS_ = 52 };
enum { MOST = 2 << 20, PIECE = 32768 };
static char input[MOST + 1];
static uint8_t piece[PIECE];

static size_t length_of(const char *text) {
    size_t n = 0;
    while (text[n]) n++;
    return n;
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static int say_to(int fd, const uint8_t *at, size_t length) {
    while (length) {
        slice text = {(uint8_t *)at, length};
        size_t done = 0;
        int error = fd_write(fd, &text, 1, &done);
        if (error) return error;
        if (!done) return EIO_;
        at += done, length -= done;
    }
    return 0;
}

static void say(int fd, const char *text) { say_to(fd, (const uint8_t *)text, length_of(text)); }

/* The value of a member, as text that ends with NUL; its quotes are gone. Values hold no escapes. */
static char *member(const char *name, char *into, size_t most) {
    size_t n = length_of(name), length = 0;
    for (char *at = input; *at; at++) {
        size_t i = 0;
        while (i < n && at[1 + i] == name[i]) i++;
        if (at[0] != '"' || i < n || at[1 + n] != '"' || at[2 + n] != ':') continue;
        at += 3 + n;
        int quoted = *at == '"';
        for (at += quoted; *at && (quoted ? *at != '"' : *at >= '0' && *at <= '9') && length + 1 < most; at++)
            into[length++] = *at;
        break;
    }
    into[length] = 0;
    return into;
}

static uint32_t number(const char *name) {
    char text[16];
    uint32_t value = 0;
    for (char *at = member(name, text, sizeof text); *at; at++) value = value * 10 + (uint32_t)(*at - '0');
    return value;
}

/* The opened folder that is nearest to a path, as a libc would choose it; a path below none is tried as it stands. */
static int nearest(const char *path, const char **rest) {
    int best = 3;
    size_t longest = 0;
    prestat what;
    *rest = path;
    for (int fd = 3; !fd_prestat_get(fd, &what); fd++) {
        static char name[512];
        if (what.length >= sizeof name || fd_prestat_dir_name(fd, name, what.length)) continue;
        name[what.length] = 0;
        size_t n = what.length, i = 0;
        if (same(name, ".") && path[0] != '/' && !longest) {
            best = fd;
            continue;
        }
        while (i < n && path[i] == name[i]) i++;
        if (i < n || n <= longest || (path[n] && path[n] != '/')) continue;
        best = fd, longest = n;
        *rest = path[n] ? path + n + 1 : ".";
    }
    return best;
}

static int opened(const char *path, int how, uint64_t rights, int *fd) {
    const char *rest;
    int dir = nearest(path, &rest);
    return path_open(dir, 1, rest, length_of(rest), how, rights, 0, 0, fd);
}

static int on_file(const char *what, const char *path) {
    int fd;
    int error = ENOSYS_;
    size_t done;
    if (same(what, "read") && !(error = opened(path, 0, READ, &fd))) {
        slice into = {piece, 64};
        error = fd_read(fd, &into, 1, &done);
    } else if (same(what, "list") && !(error = opened(path, FOLDER, READ, &fd))) {
        error = fd_readdir(fd, piece, PIECE, 0, &done);
    } else if (same(what, "write") && !(error = opened(path, CREATE | CUT, WRITE, &fd))) {
        error = say_to(fd, (const uint8_t *)"new\n", 4);
    } else if (same(what, "fill") && !(error = opened(path, CREATE, WRITE, &fd))) {
        for (uint32_t left = number("n"); left && !error; left -= left < PIECE ? left : PIECE)
            error = say_to(fd, piece, left < PIECE ? left : PIECE);
    } else if (same(what, "open") && !(error = 0)) {
        for (uint32_t left = number("n"); left && !error; left--) error = opened(path, FOLDER, READ, &fd);
    }
    return error;
}

static int on_name(const char *what, const char *path) {
    const char *rest, *other;
    int dir = nearest(path, &rest);
    size_t n = length_of(rest);
    char to[512];
    member("to", to, sizeof to);
    int second = nearest(to, &other);
    if (same(what, "unlink")) return path_unlink_file(dir, rest, n);
    if (same(what, "mkdir")) return path_create_directory(dir, rest, n);
    if (same(what, "touch")) return path_filestat_set_times(dir, 1, rest, n, 1000000000, 1000000000, 5);
    if (same(what, "rename")) return path_rename(dir, rest, n, second, other, length_of(other));
    if (same(what, "link")) return path_link(dir, 0, rest, n, second, other, length_of(other));
    if (same(what, "symlink")) return path_symlink(to, length_of(to), dir, rest, n);
    return on_file(what, path);
}

static uint64_t now(void) {
    uint64_t nanos = 0;
    clock_time_get(1, 1, &nanos);
    return nanos / 1000000;
}

static void rest_for(uint32_t ms) {
    static struct { uint64_t user; uint8_t tag; _Alignas(8) uint32_t clock; uint64_t nanos, precision; uint16_t flags; } in;
    uint8_t out[32];
    size_t done;
    in.clock = 1, in.nanos = (uint64_t)ms * 1000000;
    poll_oneoff(&in, out, 1, &done);
}

/* The value of a variable, or nothing. */
static const char *environment(const char *name) {
    static char *entries[64];
    static char text[16384];
    size_t count = 0, bytes = 0, n = length_of(name);
    if (environ_sizes_get(&count, &bytes) || count > 64 || bytes > sizeof text || environ_get(entries, text)) return 0;
    for (size_t at = 0; at < count; at++) {
        size_t i = 0;
        while (i < n && entries[at][i] == name[i]) i++;
        if (i == n && entries[at][n] == '=') return entries[at] + n + 1;
    }
    return 0;
}

static const struct { int number; const char *name; } ERRORS[] = {
    {0, "ok"}, {2, "EACCES"}, {8, "EBADF"}, {20, "EEXIST"}, {22, "EFBIG"}, {28, "EINVAL"}, {29, "EIO"}, {31, "EISDIR"},
    {32, "ELOOP"}, {33, "EMFILE"}, {44, "ENOENT"}, {48, "ENOMEM"}, {51, "ENOSPC"}, {52, "ENOSYS"}, {54, "ENOTDIR"},
    {58, "ENOTSUP"}, {63, "EPERM"}, {69, "EROFS"}, {75, "EXDEV"}, {76, "ENOTCAPABLE"},
};

static const char *word(int error) {
    for (size_t at = 0; at < sizeof ERRORS / sizeof *ERRORS; at++)
        if (ERRORS[at].number == error) return ERRORS[at].name;
    return "another error";
}

static const char *attempt(const char *what, const char *path) {
    uint32_t n = number("n");
    if (same(what, "nothing")) return "ok";
    if (same(what, "spin")) {
        for (uint64_t end = now() + n; now() < end;) {}
        return "ok";
    }
    if (same(what, "sleep")) return rest_for(n), "ok";
    if (same(what, "memory")) {
        if (__builtin_wasm_memory_grow(0, n >> 16) == (size_t)-1) proc_exit(1);
        return "ok";
    }
    if (same(what, "crash")) __builtin_trap();
    if (same(what, "log")) {
        for (size_t at = 0; at < PIECE; at++) piece[at] = 'x';
        for (; n; n -= n < PIECE ? n : PIECE) say_to(2, piece, n < PIECE ? n : PIECE);
        return "ok";
    }
    if (same(what, "variable")) {
        const char *value = environment(path);
        return value ? value : word(ENOENT_);
    }
    return word(on_name(what, path));
}

__attribute__((export_name("_start"))) void start(void) {
    size_t length = 0, done = 0;
    do {
        slice rest = {(uint8_t *)input + length, MOST - length};
        if (fd_read(0, &rest, 1, &done)) proc_exit(9);
        length += done;
    } while (done && length < MOST);
    char what[32], path[512];
    member("do", what, sizeof what);
    member("path", path, sizeof path);
    if (same(what, "print")) {
        /* As it stands: what is not one JSON document as well. */
        say(1, path);
    } else if (same(what, "flood")) {
        uint32_t n = number("n");
        for (size_t at = 0; at < PIECE; at++) piece[at] = 'x';
        say(1, "\"");
        for (; n; n -= n < PIECE ? n : PIECE) say_to(1, piece, n < PIECE ? n : PIECE);
        say(1, "\"");
    } else {
        const char *did = attempt(what, path);
        say(1, "{\"did\":\"");
        say(1, did);
        say(1, "\"}");
        /* A full scratch is no answer to be content with. */
        if (same(did, "ENOSPC")) proc_exit(1);
    }
    proc_exit((int)number("exit"));
}
