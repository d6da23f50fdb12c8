/* generation_config.json over a configuration of 1000 tokens. */
#include <string.h>

#include "models/config.h"
#include "models/generation.h"
#include "tests/fuzz/support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mk_config config = {.vocab = 1000, .eos_count = 1, .eos = {7}};
  const mk_config before = config;
  mk_status status = mk_config_parse_generation((const char *)data, size, &config);
  fuzz_expect_parsed(status);
  fuzz_require(status == MK_OK || memcmp(&config, &before, sizeof config) == 0,
               "a refused file has changed the configuration");
  fuzz_require(!config.has_bos || config.bos < config.vocab, "bos %u", config.bos);
  fuzz_require(config.eos_count <= MK_MAX_EOS, "%u eos ids", config.eos_count);
  for (uint32_t i = 0; i < config.eos_count; i++) {
    fuzz_require(config.eos[i] < config.vocab, "eos %u", config.eos[i]);
  }
  mk_generation generation = {.top_k = 9};
  status = mk_generation_parse((const char *)data, size, &generation);
  fuzz_expect_parsed(status);
  fuzz_require(status == MK_OK || generation.top_k == 9, "a refused file has changed the parameters");
  fuzz_require(status != MK_OK || (generation.temperature >= 0 && generation.top_p >= 0 && generation.top_p <= 1 &&
                                   generation.min_p >= 0 && generation.min_p <= 1),
               "temperature %g, top_p %g, min_p %g", generation.temperature, generation.top_p, generation.min_p);
  return 0;
}
