/* A trace as one HTML page that needs nothing else: `mkvm trace FILE -o out.html`.
 *
 * The page itself (tools/profiler/page/) is built into the library as text. What comes from the trace is one block of
 * base64 in it, a zlib stream that the page's script unpacks, so that no byte of a trace is ever markup. The stream, in
 * numbers as of bytes.h; tables are column by column:
 *   JSON          its length and the text: names, facts, and the summary (mk_summary_json) instructions  how many;
 *   uid (signed, minus the one before), opcode, layer + 1 (0: none), SM, pages operands      for each instruction,
 *   for each operand of its opcode: cols (0: not used, nothing follows), buffer, row, rows, col texts         of each
 *   instruction, the disassembler's line: length in bytes of all, then the lines, each with a line end tracks
 *   SMs, roles, intervals of all; for each SM, for each role: how many, start of the first; length in nanoseconds,
 *                 instruction + 1 (signed, minus the one before), activity (a byte), step (minus the
 *                 one before), edge; then for each wait for another SM, in order: 0, or 1 + the zigzag
 *                 of the publisher minus the waiting instruction
 *   paths         of MK_PAGE_PATHS steps at most, around the summary's; how many; for each: step, parts; start (minus
 *   the one
 *                 before), length, track (SM * roles + role), instruction + 1, publisher + 1, activity
 *
 * The summary stays the caller's. One thread. Failure: MK_ERR_RUNTIME for memory, and for a text that is not UTF-8,
 * which a trace that was read from a file does not hold. */
#ifndef MK_PAGE_H
#define MK_PAGE_H

#include "tools/profiler/summary.h"

enum { MK_PAGE_PATHS = 64 }; /* a path takes a look at the whole trace */

/* The page as bytes; mk_free(*data). */
mk_status mk_page_make(const mk_summary *summary, void **data, size_t *length);

#endif
