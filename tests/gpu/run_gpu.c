/* Tests of the GPU machine, as one plain program that can be carried to a machine with a GPU and nothing but its
 * driver:
 *   mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] GOLDEN.bin ...
 *   mkvm_gpu_tests [--device cuda:N] --like SHAPE --depth TOKENS
 *   mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] --rows [GOLDEN.bin ...]
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --families [GOLDEN.bin ...]
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --quantised
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --mla
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --mixture
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --many
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --schedules
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --ranks
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --programs FILE.mks ...
 * The first program of --programs also has indices out of range put before it.
 * --deadline MS before these: of every wait, for a tool that slows the GPU down.
 * Prints a line per check and "N passed, N failed"; exit code 0, 1 when a check failed, 77 when there is no GPU to test
 * on. Goldens: tests/oracle/README.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/golden_run.h"
#include "tests/gpu/gpu_test.h"

static const char usage[] =
    "usage: mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] GOLDEN.bin ...\n"
    "       mkvm_gpu_tests [--device cuda:N] --like SHAPE --depth TOKENS\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --many\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --families [GOLDEN.bin ...]\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --quantised [FORM ...]\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --fp8-cache\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --mla\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --mixture\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --sampling\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --schedules\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --tiles\n"
    "       mkvm_gpu_tests [--device cuda:N] --traces\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --programs FILE.mks ...\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] --rows [GOLDEN.bin ...]\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] --prompts [GOLDEN.bin ...]\n"
    "--deadline MS: of every wait, for runs under a tool that slows the GPU down (1500)\n"
    "--kv fp8: of every model with a cache that it may have; with --rows, --sampling, --ranks, --traces, --depth\n"
    "--model DIR: weights of the goldens that are of a model directory (demo.bin: models/demo)\n"
    "--rows: only several rows per step, and of the goldens only their prompts in chunks\n"
    "--prompts: the same of programs for the prompt of one sequence\n"
    "--families: only what sets other families apart, and goldens of those\n"
    "--quantised: only weights of eight and four bits, of all forms or of those named (\"int4\")\n"
    "--fp8-cache: only a KV cache in fp8\n"
    "--quick: fewer repeats, none of large goldens, and faults on the first golden only\n"
    "--like SHAPE --depth TOKENS: only that launches after so many tokens of hash values in the KV cache give the same "
    "bits\n"
    "--mla: only the tile library and MLA decode\n"
    "--mixture: only that logits are the same in every mixture of machines and rows\n"
    "--sampling: only draws\n"
    "--ranks: only models that several GPUs share, from that one on\n"
    "--schedules: only requests that come and go at an engine\n"
    "--tiles: only the tile library\n"
    "--traces: only the recorder\n";

static int finish(void) {
  printf("%u passed, %u failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
  bool quick = false, mla = false, sampling = false, rows = false, prompts = false, programs = false, mixture = false;
  bool schedules = false, tiles = false, traces = false, many = false, families = false, ranks = false;
  bool quantised = false, fp8_cache = false;
  bool first = true;
  const char *shape = NULL;
  uint32_t depth = 0;
  int at = 1;
  for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
    if (strcmp(argv[at], "--quick") == 0) {
      quick = true;
    } else if (strcmp(argv[at], "--mla") == 0) {
      mla = true;
    } else if (strcmp(argv[at], "--sampling") == 0) {
      sampling = true;
    } else if (strcmp(argv[at], "--rows") == 0) {
      rows = true;
    } else if (strcmp(argv[at], "--many") == 0) {
      many = true;
    } else if (strcmp(argv[at], "--prompts") == 0) {
      prompts = true;
    } else if (strcmp(argv[at], "--mixture") == 0) {
      mixture = true;
    } else if (strcmp(argv[at], "--schedules") == 0) {
      schedules = true;
    } else if (strcmp(argv[at], "--ranks") == 0) {
      ranks = true;
    } else if (strcmp(argv[at], "--tiles") == 0) {
      tiles = true;
    } else if (strcmp(argv[at], "--traces") == 0) {
      traces = true;
    } else if (strcmp(argv[at], "--families") == 0) {
      families = true;
    } else if (strcmp(argv[at], "--quantised") == 0) {
      quantised = true;
    } else if (strcmp(argv[at], "--fp8-cache") == 0) {
      fp8_cache = true;
    } else if (strcmp(argv[at], "--kv") == 0 && at + 1 < argc && strcmp(argv[at + 1], "fp8") == 0) {
      kv = MK_DTYPE_E4M3;
      at++;
    } else if (strcmp(argv[at], "--programs") == 0) {
      programs = true;
    } else if (strcmp(argv[at], "--device") == 0 && at + 1 < argc) {
      device = argv[++at];
    } else if (strcmp(argv[at], "--deadline") == 0 && at + 1 < argc) {
      deadline_ms = (uint32_t)strtoul(argv[++at], NULL, 10);
    } else if (strcmp(argv[at], "--model") == 0 && at + 1 < argc) {
      model = argv[++at];
    } else if (strcmp(argv[at], "--like") == 0 && at + 1 < argc) {
      shape = argv[++at];
    } else if (strcmp(argv[at], "--depth") == 0 && at + 1 < argc) {
      depth = (uint32_t)strtoul(argv[++at], NULL, 10);
    } else {
      fputs(usage, stderr);
      return 2;
    }
  }
  if (!mk_gpu_present(device_index())) {
    printf("no GPU to test on: %s\n", mk_error_message());
    return 77;
  }
  if (shape != NULL && at == argc) {
    test_depth(shape, depth);
    return finish();
  }
  if (mla && at == argc) {
    test_tiles(quick);
    test_mla(quick);
    return finish();
  }
  if (sampling && at == argc) {
    test_sampling(quick);
    return finish();
  }
  if (mixture && at == argc) {
    test_mixture(quick);
    return finish();
  }
  if (quantised) {
    for (int i = at; i < argc; i++) {
      test_quantised(argv[i], quick);
    }
    if (at == argc) {
      test_quantised(NULL, quick);
    }
    return finish();
  }
  if (fp8_cache && at == argc) {
    test_kv(quick);
    return finish();
  }
  if (many && at == argc) {
    test_many(quick);
    return finish();
  }
  if (schedules && at == argc) {
    test_schedules(quick);
    return finish();
  }
  if (ranks && at == argc) {
    test_ranks(quick);
    return finish();
  }
  if (tiles && at == argc) {
    test_tiles(quick);
    return finish();
  }
  if (traces && at == argc) {
    test_traces();
    return finish();
  }
  if (programs && at < argc) {
    test_indices(argv[at]);
    for (; at < argc; at++) {
      test_program(argv[at], quick);
    }
    return finish();
  }
  if (families) {
    for (int i = at; i < argc; i++) {
      test_family_golden(argv[i], quick);
    }
    if (at == argc) {
      test_families(quick);
    }
    return finish();
  }
  if (rows) {
    test_rows(quick);
    for (; at < argc; at++) {
      test_rows_golden(argv[at], MK_MAX_ROWS);
    }
    return finish();
  }
  if (prompts) {
    test_prompts(quick);
    for (; at < argc; at++) {
      test_rows_golden(argv[at], MK_WIDE_ROWS);
    }
    return finish();
  }
  if (shape != NULL || mla || sampling || mixture || many || schedules || ranks || tiles || traces || fp8_cache ||
      at == argc) {
    fputs(usage, stderr);
    return 2;
  }
  test_tiles(quick);
  test_packing();
  test_sampling(quick);
  test_mla(quick);
  test_rows(quick);
  test_many(quick);
  test_families(quick);
  test_quantised(NULL, quick);
  test_kv(quick);
  test_prompts(quick);
  test_mixture(quick);
  test_schedules(quick);
  test_ranks(quick);
  test_traces();
  for (; at < argc; at++, first = false) {
    test_golden(argv[at], first, quick);
  }
  return finish();
}
