/* Counts characters, words and lines: the same answers as ../text-stats-node, as a WASI preview 1 command.
 *
 * No libc: three WASI calls are all it needs, so the module is small enough to be kept as readable text.
 * Input is one JSON object with the one member "text" (the manifest allows no other); it is read as it
 * stands, escapes and all. Build: ./build.sh */
#include <stddef.h>
#include <stdint.h>

typedef struct { uint8_t *at; size_t length; } slice;

#define WASI(name) __attribute__((import_module("wasi_snapshot_preview1"), import_name(name)))
WASI("fd_read") extern int fd_read(int fd, const slice *into, size_t slices, size_t *done);
WASI("fd_write") extern int fd_write(int fd, const slice *from, size_t slices, size_t *done);
WASI("proc_exit") extern _Noreturn void proc_exit(int code);

enum { MOST = 4 << 20 };
static uint8_t input[MOST];
static uint8_t output[128];
static size_t written;

static _Noreturn void fail(uint8_t *why, size_t length) {
    slice text = {why, length};
    size_t done;
    fd_write(2, &text, 1, &done);
    proc_exit(1);
}
#define FAIL(why) fail((uint8_t *)why "\n", sizeof why)

static void put(const char *text) {
    while (*text) output[written++] = (uint8_t)*text++;
}

static void number(uint32_t value) {
    uint8_t digits[10];
    int count = 0;
    do digits[count++] = '0' + value % 10; while (value /= 10);
    while (count) output[written++] = digits[--count];
}

static uint32_t hex4(const uint8_t *at) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = at[i];
        value = value * 16 + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return value;
}

__attribute__((export_name("_start"))) void start(void) {
    size_t length = 0, done = 0;
    do {
        slice rest = {input + length, MOST - length};
        if (fd_read(0, &rest, 1, &done)) FAIL("cannot read the input");
        length += done;
    } while (done && length < MOST);

    /* To the first quote after the colon: {"text":"... */
    size_t at = 0;
    while (at < length && input[at] != ':') at++;
    while (at < length && input[at] != '"') at++;
    if (at++ >= length) FAIL("the input has no text");

    uint32_t characters = 0, words = 0, lines = 0, longest = 0, word = 0;
    int open_line = 0;
    while (at < length && input[at] != '"') {
        uint32_t c = input[at++];
        if (c == '\\') {
            c = input[at++];
            if (c == 'n') c = '\n';
            else if (c == 't') c = '\t';
            else if (c == 'r') c = '\r';
            else if (c == 'u' && at + 4 <= length) {
                c = hex4(input + at);
                at += 4;
                if (c >= 0xdc00 && c <= 0xdfff) continue; /* second half of a pair: already counted */
            } else c = 'x'; /* \" \\ \/ \b \f: one character that is no break */
        } else if ((c & 0xc0) == 0x80) continue; /* the rest of a UTF-8 character */
        characters++;
        open_line = c != '\n';
        lines += c == '\n';
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            word = 0;
        } else {
            words += word++ == 0;
            if (word > longest) longest = word;
        }
    }
    if (at >= length) FAIL("the input ends within the text");
    put("{\"characters\":");
    number(characters);
    put(",\"words\":");
    number(words);
    put(",\"lines\":");
    number(lines + (uint32_t)open_line);
    put(",\"longestWord\":");
    number(longest);
    put("}\n");
    slice text = {output, written};
    if (fd_write(1, &text, 1, &done)) FAIL("cannot write the output");
}
