/* MK_WIDEST before a function: compiled for every vector width that matters, of which the program takes the widest that
 * its CPU has. Without fused multiply-adds (-ffp-contract=off) all of them give the same bits. */
#ifndef MK_WIDEST_H
#define MK_WIDEST_H

/* ThreadSanitizer's code in what chooses one runs before there is a thread to look after, and crashes. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define MK_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MK_WIDEST
#endif

#endif
