/* What `mkvm trace` says of a trace: everything the profiler finds, as text and as JSON, and what differs between two
 * traces.
 *
 * Ownership: a mk_summary owns what it holds but the trace, which the caller keeps. One thread. Failure: MK_ERR_USAGE
 * for a step that was not recorded, MK_ERR_RUNTIME for memory; output goes to a stdio stream, whose error the caller
 * looks at. Times are in microseconds. Texts of the trace are printed without control characters. */
#ifndef MK_SUMMARY_H
#define MK_SUMMARY_H

#include <jansson.h>
#include <stdio.h>

#include "tools/profiler/findings.h"
#include "tools/profiler/statistics.h"

#define MK_MEDIAN_STEP UINT32_MAX

typedef struct mk_summary {
  const mk_trace *trace;
  mk_profile *profile;
  mk_statistics *statistics;
  mk_edges *edges;
  mk_path path;
  mk_outlier *outliers;
  size_t outlier_count;
  mk_waits waits;
  double median_us; /* time of the median step */
  double bandwidth; /* bytes per second */
  bool bandwidth_given;
  char problem[256]; /* what mk_profile_check says; "": all is accounted for */
} mk_summary;

/* step: of the launch, whose critical path is wanted, or MK_MEDIAN_STEP. bandwidth: that percentages are of; 0: what
 * all loaders read per step over the time of a step. */
mk_status mk_summary_new(const mk_trace *trace, uint32_t step, double bandwidth, mk_summary **out);
void mk_summary_free(mk_summary *summary); /* NULL is fine */

void mk_summary_print(const mk_summary *summary, FILE *file);
/* Findings and tables without the rest. */
void mk_summary_print_short(const mk_summary *summary, FILE *file);
/* The critical path, part by part. */
void mk_summary_print_path(const mk_summary *summary, FILE *file);
/* NULL: out of memory, or a text that is not UTF-8. */
json_t *mk_summary_json(const mk_summary *summary);

/* What takes longer in b than in a: per opcode, role and activity, and per stage. */
mk_status mk_summary_print_difference(const mk_summary *a, const mk_summary *b, FILE *file);

/* The path's time by opcode and activity; opcode 0: at no instruction. */
void mk_path_totals(const mk_summary *summary, double totals[MK_OP_COUNT][MK_ACTIVITY_COUNT]);
/* "none" for opcode 0. */
const char *mk_opcode_text(uint32_t opcode);
/* The text without control characters; returns to. */
const char *mk_printable(const char *text, char *to, size_t size);

#endif
