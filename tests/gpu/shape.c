/* See shape.h. */
#include "tests/gpu/shape.h"

#include <string.h>

#include "models/synth.h"

mk_config config_of(const shape *s) {
  mk_config config;
  if (mk_synth_shape("tiny", &config) != MK_OK) {
    memset(&config, 0, sizeof config);
  }
  config.hidden = s->hidden;
  config.intermediate = s->intermediate;
  config.heads = s->heads;
  config.kv_heads = s->kv_heads;
  config.head_dim = s->head_dim;
  config.layers = s->layers;
  config.vocab = 1000;
  config.max_position = s->max_seq > 4096 ? s->max_seq : 4096;
  if (s->change != NULL) {
    s->change(&config);
  }
  return config;
}
