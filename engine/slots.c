/* What a program that draws knows of the sequence in a slot: parameters, bias, and the tokens that it has had. See
 * engine_internal.h. */
#include <string.h>

#include "engine/engine_internal.h"

/* The line of a slot, of a buffer [slots][vocab]. */
static mk_status write_by_token(const mk_engine *engine, const mk_engine_machine *machine, int buffer, uint32_t slot,
                                const uint32_t *words) {
  uint64_t bytes = engine->config.vocab * sizeof *words;
  return mk_engine_write(machine, (size_t)buffer, slot * bytes, words, bytes);
}

static mk_status write_bias(const mk_engine *engine, const mk_engine_machine *machine, uint32_t slot,
                            const mk_sampling *sampling) {
  uint32_t *bias;
  MK_TRY(mk_alloc(engine->config.vocab, sizeof *bias, &bias));
  for (size_t i = 0; i < sampling->bias_count; i++) {
    bias[sampling->biases[i].token] = mk_float_param(sampling->biases[i].bias);
  }
  mk_status status = write_by_token(engine, machine, machine->bias, slot, bias);
  mk_free(bias);
  return status;
}

static mk_status write_words(const mk_engine *engine, const mk_engine_machine *machine, uint32_t slot,
                             const mk_sampling *sampling) {
  uint32_t words[MK_SAMPLING_WORDS];
  mk_sampling_words(sampling, engine->config.vocab, words);
  return mk_engine_write(machine, (size_t)machine->sampling, slot * sizeof words, words, sizeof words);
}

static mk_status write_counts(const mk_engine *engine, const mk_engine_machine *machine, uint32_t slot,
                              const uint32_t *tokens, size_t prompt_count, size_t count) {
  uint32_t *counts;
  MK_TRY(mk_alloc(engine->config.vocab, sizeof *counts, &counts));
  for (size_t i = 0; i < count; i++) {
    uint32_t *seen = &counts[tokens[i]];
    *seen = i < prompt_count ? *seen | MK_COUNT_PROMPT : *seen + 1;
  }
  mk_status status = write_by_token(engine, machine, machine->counts, slot, counts);
  mk_free(counts);
  return status;
}

static mk_status check_slot(const mk_engine *engine, uint32_t slot) {
  uint32_t slots = mk_program_slots(mk_engine_main(engine)->program);
  return slot < slots ? MK_OK : mk_error(MK_ERR_USAGE, "sampling of slot %u: the engine has %u", slot, slots);
}

mk_status mk_engine_set_slot_counts(mk_engine *engine, uint32_t slot, const uint32_t *tokens, size_t prompt_count,
                                    size_t count) {
  const mk_engine_machine *main = mk_engine_main(engine);
  MK_TRY(check_slot(engine, slot));
  for (size_t i = 0; main->counts >= 0 && i < count; i++) {
    if (tokens[i] >= engine->config.vocab) {
      return mk_error(MK_ERR_USAGE, "token %zu is %u; the vocabulary has %u", i, tokens[i], engine->config.vocab);
    }
  }
  return main->counts < 0 ? MK_OK : write_counts(engine, main, slot, tokens, prompt_count, count);
}

mk_status mk_engine_set_slot_sampling(mk_engine *engine, uint32_t slot, const mk_sampling *sampling) {
  const mk_engine_machine *main = mk_engine_main(engine);
  MK_TRY(mk_sampling_check(sampling, engine->config.vocab));
  MK_TRY(check_slot(engine, slot));
  if (main->sampling < 0) {
    return mk_sampling_is_greedy(sampling)
               ? MK_OK
               : mk_error(MK_ERR_USAGE, "the engine was opened with a greedy program; it cannot sample");
  }
  MK_TRY(write_words(engine, main, slot, sampling));
  MK_TRY(write_bias(engine, main, slot, sampling));
  return write_counts(engine, main, slot, NULL, 0, 0);
}

mk_status mk_engine_set_sampling(mk_engine *engine, const mk_sampling *sampling) {
  for (uint32_t slot = 0; slot < mk_program_slots(mk_engine_main(engine)->program); slot++) {
    MK_TRY(mk_engine_set_slot_sampling(engine, slot, sampling));
  }
  return MK_OK;
}

/* Gives a machine the parameters by which a slot's sequence is drawn, and its bias if it has one: without one no opcode
 * looks there. */
static mk_status tell_parameters(const mk_engine *engine, const mk_engine_machine *machine, uint32_t slot,
                                 const mk_sampling *sampling) {
  const uint32_t to = engine->swaps_sampling ? (slot + 1) % mk_program_slots(machine->program) : slot;
  MK_TRY(mk_sampling_check(sampling, engine->config.vocab));
  MK_TRY(write_words(engine, machine, to, sampling));
  return sampling->bias_count != 0 ? write_bias(engine, machine, to, sampling) : MK_OK;
}

/* Gives a machine the counts of the tokens that the sequence has had, if they matter and the machine does not have
 * them: it counts the tokens of its own steps itself, but may have computed steps that the host was not told of. */
static mk_status tell_counts(const mk_engine *engine, const mk_engine_machine *machine, uint32_t slot,
                             const mk_slot_view *view) {
  const uint32_t prompt = view->prompt_count < view->computed ? view->prompt_count : view->computed;
  const bool matters = view->sampling == NULL || mk_sampling_penalizes(view->sampling);
  const bool forgotten = view->crosses && engine->forgets_counts;
  return matters && (view->fresh || view->went_on) && !forgotten
             ? write_counts(engine, machine, slot, view->tokens, prompt, view->computed)
             : MK_OK;
}

mk_status mk_engine_prepare_slots(mk_engine *engine, const mk_engine_machine *machine) {
  mk_slot_view view;
  for (uint32_t slot = 0; machine->counts >= 0 && slot < mk_program_slots(machine->program); slot++) {
    if (mk_batch_slot(engine->batch, slot, &view)) {
      MK_TRY(view.fresh && view.sampling != NULL ? tell_parameters(engine, machine, slot, view.sampling) : MK_OK);
      MK_TRY(tell_counts(engine, machine, slot, &view));
    }
  }
  return MK_OK;
}
