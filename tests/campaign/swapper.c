/* swapper COUNTER BREATH DIR_A NAME_A DIR_B NAME_B [...]: lets the two names of each pair change
   places, over and over, one pair drawn after the other; the number of exchanges is kept in the
   first eight bytes of the file COUNTER, and the ninth byte ends it. After each exchange it idles
   for up to BREATH turns of an empty loop, so that looks are met at all their phases. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#define MOST 16

int main(int argc, char **argv)
{
    int at[2 * MOST], pairs = (argc - 3) / 4;
    if (argc < 7 || pairs > MOST)
        return 64;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int counter = open(argv[1], O_RDWR);
    volatile uint64_t *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, counter, 0);
    volatile char *end = (volatile char *)(count + 1);
    unsigned breath = (unsigned)atoi(argv[2]), state = (unsigned)getpid();
    char **names = argv + 3;
    if (counter < 0 || count == MAP_FAILED)
        return 66;
    for (int n = 0; n < 2 * pairs; n++)
        if ((at[n] = open(names[2 * n], O_PATH | O_DIRECTORY)) < 0)
            return 66;
    while (!*end) {
        state = state * 1664525u + 1013904223u;
        int pair = (int)((state >> 16) % (unsigned)pairs);
        if (renameat2(at[2 * pair], names[4 * pair + 1], at[2 * pair + 1], names[4 * pair + 3],
                      RENAME_EXCHANGE) == 0)
            ++*count;
        for (volatile unsigned wait = breath ? (state >> 8) % breath : 0; wait; wait--)
            ;
    }
    return 0;
}
