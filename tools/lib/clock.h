/* The clock that benchmarks and progress lines share. Any thread. */
#ifndef MK_CLOCK_H
#define MK_CLOCK_H

double mk_seconds(void); /* monotonic */

#endif
