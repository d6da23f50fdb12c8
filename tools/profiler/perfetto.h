/* A trace for Perfetto (ui.perfetto.dev): its native protobuf of TrackEvents, `mkvm trace FILE -o out.pftrace`.
 *
 * A process per SM, a thread per role. A role's part of an instruction is a slice with the opcode's name and, as
 * arguments, token, layer, uid and the disassembler's line; what it waited for lies within it, and what belongs to no
 * instruction beside it. A flow leads from the part that published last to each wait that it ended. Counters, as means
 * of short spans: consumers at work, waiting for other SMs, and waiting for weights; and bytes in flight: issued by the
 * loaders and not yet used by the consumers, where the bytes of an instruction are spread evenly over the time in which
 * its loader works, and its consumers after the last wait for another SM.
 *
 * The summary stays the caller's. One thread. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_PERFETTO_H
#define MK_PERFETTO_H

#include "tools/profiler/summary.h"

/* The file as bytes; mk_free(*data). */
mk_status mk_perfetto_make(const mk_summary *summary, void **data, size_t *length);

#endif
