/* Says, as a JSON text, which program pid 1 runs: its argument 0. Nothing goes before, not even a C library. */
static long call(long number, long first, const void *second, long third) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
}

void _start(void) {
    char text[64] = "\"pid 1: ";
    long file = call(2, (long)"/proc/1/cmdline", 0, 0), end = 8;
    call(0, file, text + end, 50);
    while (text[end]) end++;
    text[end] = '"';
    call(1, 1, text, end + 1);
    call(231, 0, 0, 0);
}
