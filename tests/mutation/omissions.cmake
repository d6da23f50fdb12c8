# Verifiers with one rule taken out, each of which the generated programs of tests/mutation have to find: `tools/mutate
# --omissions`.
#
# mk_omission(NAME FILE BEFORE AFTER): mk_mutate_NAME, an mk_mutate whose verifier has AFTER in the place of BEFORE in
# FILE. The text has to be there, once; where it is not, the verifier has changed, and this list has to follow. What is
# taken out is made to be always fulfilled in a way that leaves no function unused.
#
# Not here are rules without which a program is rejected all the same (E03, by D01; S08, by R01; S13, by S10 or, of a
# plan or a ring of which a part would do, by nothing that a run could tell), and rules of which nothing is run that
# could tell: N05 of a score's parameters and N07 of a sift's scores decide which token is drawn, the same one on all
# SMs, and a row of a work list that is carried out twice (L02) comes to the same values. Their test is
# tests/vm/data/faults.def. On the CPU machine it is the consumer who reads what a GPU's loader copies in wide
# programs: tests/vm/verify/test_wide.c.
set(MK_OMISSION_NAMES "")

function(mk_omission name file before after)
  file(READ ${PROJECT_SOURCE_DIR}/${file} text)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
  string(FIND "${text}" "${before}" first)
  string(FIND "${text}" "${before}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "tests/mutation/omissions.cmake, ${name}: "
                        "${file} does not have this text, or more than once:\n${before}")
  endif()
  string(REPLACE "${before}" "${after}" text "${text}")
  set(changed ${PROJECT_BINARY_DIR}/omissions/${name}.c)
  file(CONFIGURE OUTPUT ${changed} CONTENT "@text@" @ONLY) # writes only what differs
  add_executable(mk_mutate_${name} $<TARGET_OBJECTS:mk_mutate_main> ${changed})
  target_link_libraries(mk_mutate_${name} PRIVATE mk_test_support)
  set_target_properties(mk_mutate_${name} PROPERTIES
    EXCLUDE_FROM_ALL ON RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/omissions)
  set(MK_OMISSION_NAMES ${MK_OMISSION_NAMES} ${name} PARENT_SCOPE)
endfunction()

# Bounds and types of single instructions.

# An operand may reach beyond its buffer.
mk_omission(B01 vm/verify/structure.c
  [=[if ((uint32_t)o->row + o->rows > rows || (uint32_t)o->col + o->cols > cols) {]=]
  [=[if (v == NULL && ((uint32_t)o->row + o->rows > rows || (uint32_t)o->col + o->cols > cols)) {]=])
# The rows of a token's operand need not hold every token.
mk_omission(B02_row vm/verify/shape.c
  [=[if (rows->row > token->low || token->high - rows->row >= rows->rows) {]=]
  [=[if (s == NULL && (rows->row > token->low || token->high - rows->row >= rows->rows)) {]=])
# A head or a draw may name tokens beyond the range.
mk_omission(B02_named vm/verify/shape.c
  [=[if (token->low != 0 || token->high < count - 1) {]=]
  [=[if (s == NULL && (token->low != 0 || token->high < count - 1)) {]=])
# The block table may be too short for the last position.
mk_omission(B03_table vm/verify/shape_attention.c
  [=[if (table->cols < blocks) {]=]
  [=[if (s == NULL && table->cols < blocks) {]=])
# The table may name blocks that the cache does not have.
mk_omission(B03_cache vm/verify/shape_attention.c
  [=[if (kv->blocks <= ranges->block.high) {]=]
  [=[if (s == NULL && kv->blocks <= ranges->block.high) {]=])
# The token ring may be too short for the steps of the plan.
mk_omission(B03_ring vm/verify/shape.c
  [=[if (ring->cols < plan->cols / MK_ROW_WORDS) {]=]
  [=[if (s == NULL && ring->cols < plan->cols / MK_ROW_WORDS) {]=])
# Stamped bf16 may be of odd width, and the last one has half a word.
mk_omission(S02_odd vm/verify/buffers.c
  [=[(b->tile_cols % 2 != 0 || b->cols % 2 != 0)) {]=]
  [=[b->tile_cols % 2 != 0) {]=])
# uid 0 may name an instruction.
mk_omission(S05_zero vm/verify/structure.c
  [=[if (uids[i].low == 0) {]=]
  [=[if (uids[i].low == 0 && v == NULL) {]=])
# The table may name fewer blocks than the positions need, so that two places are in one.
mk_omission(B03_blocks vm/verify/shape_attention.c
  [=[if (ranges->block.high - ranges->block.low + 1 < blocks && mk_program_rows(s->v->program) == 1) {]=]
  [=[if (ranges->block.high - ranges->block.low + 1 < blocks && s == NULL) {]=])
# Two tables may name blocks of one cache.
mk_omission(B05_tables vm/verify/values.c
  [=[if (*table != 0 && *table != have) {]=]
  [=[if (*table != 0 && *table != have && v == NULL) {]=])
# The number of splits of an attention may be another one than its cache has.
mk_omission(S09_splits vm/verify/shape_attention.c
  [=[s->in->params[MK_PARAM_ATTENTION_splits] == kv->rows,]=]
  [=[s->in->params[MK_PARAM_ATTENTION_splits] != 0,]=])
# A loader may copy what its buffer does not declare for it.
mk_omission(P03 vm/verify/structure.c
  [=[if ((b->proxy & proxies) != proxies) {]=]
  [=[if (v == NULL && (b->proxy & proxies) != proxies) {]=])
# Several SMs may use what has the scope of one.
mk_omission(P04 vm/verify/structure.c
  [=[if (v->queue_of[*owner - 1] != v->queue_of[index]) {]=]
  [=[if (name == NULL && v->queue_of[*owner - 1] != v->queue_of[index]) {]=])

# Edges and the step state.

# A counter's total may be another one than its signals make.
mk_omission(E02 vm/verify/structure.c
  [=[if (totals[c] != p->counters[c].total) {]=]
  [=[if (v == NULL && totals[c] != p->counters[c].total) {]=])
# A signal of the next epoch may help a wait of this one.
mk_omission(E04 vm/verify/order.c
  [=[MK_TRY(mk_check_overrun(run, c, index, thread));]=]
  [=[MK_TRY(epoch >= MK_EPOCHS ? mk_check_overrun(run, c, index, thread) : MK_OK);]=])
# A stamp proves the signal that the same instruction sends after it.
mk_omission(E04_stamp vm/verify/order.c
  [=[set_time(known, storer, mk_time(run->lanes[lane].done, MK_DONE));]=]
  [=[part(run, known);
  mk_clock_set(&known->hb, storer, mk_time(run->lanes[lane].done, MK_DONE));
  mk_clock_set(&known->dep, storer, mk_time(run->lanes[lane].done, MK_SIGNALLED));]=])
# A consumer's signal comes after what the storers of its queue have done.
mk_omission(finisher vm/verify/counters.c
  [=[return mk_thread_of(v, instruction, mk_opcode_finisher(mk_info(mk_at(v, instruction))));]=]
  [=[return mk_thread_of(v, instruction, MK_ROLE_STORER);]=])
# A queue may have no `next`.
mk_omission(N01 vm/verify/boundary.c
  [=[    return mk_reject(v, "N01", q->first,
                     "no next on its queue: it would neither learn the next token nor where a run ends");]=]
  [=[    return MK_OK;]=])
# The step state may be read after its `next`.
mk_omission(N02 vm/verify/boundary.c
  [=[} else if (mk_reads_state(v, in) && ending->next != MK_NONE_INDEX) {]=]
  [=[} else if (mk_reads_state(v, in) && ending->next != MK_NONE_INDEX && b == NULL) {]=])
# SMs may take their tokens from other candidates or plans.
mk_omission(N04_same vm/verify/boundary.c
  [=[if (!same || !same_operand(b, next, MK_SLOT_NEXT_plan, first, MK_SLOT_NEXT_plan)) {]=]
  [=[if (b == NULL && !same) {]=])
# A `next` may take some of the candidates.
mk_omission(N04_whole vm/verify/boundary.c
  [=[if (!b->samples && (from->row != 0 ||]=]
  [=[if (b->samples && (from->row != 0 ||]=])
# There may be no next token.
mk_omission(N04_heads vm/verify/boundary.c
  [=[if (b.first.next != MK_NONE_INDEX && !b.head_exists) {]=]
  [=[if (b.first.next == MK_NONE_INDEX && !b.head_exists && p->instruction_count != 0) {]=])
# Rounds and draws may be of other fronts, rounds, parameters or scores than those of other SMs.
mk_omission(N05_same vm/verify/boundary.c
  [=[    if (!same) {
      return mk_reject(v, "N05", at]=]
  [=[    if (!same && v == NULL) {
      return mk_reject(v, "N05", at]=])
# A `next` may signal, which no machine does.
mk_omission(N09 vm/verify/boundary.c
  [=[if (in->signal_count != 0) {]=]
  [=[if (in->signal_count > MK_MAX_SIGNALS) {]=])

# Who reads and writes what.

# Nobody need write what is waited for.
mk_omission(D02 vm/verify/access.c
  [=[if (covered < end) {]=]
  [=[if (covered < end && v == NULL) {]=])
# A stamped word may have two writers.
mk_omission(R04 vm/verify/access.c
  [=[if (same_row && is_stamped(v, a) && a->end > (b->key & 0xffff)) {]=]
  [=[if (v == NULL && same_row && is_stamped(v, a) && a->end > (b->key & 0xffff)) {]=])
# What scores and attention leave may be read as any numbers are, and a combine may count other spans.
mk_omission(S11 vm/verify/access.c
  [=[MK_TRY(mk_verify_value(v, use->instruction, use->slot, &v->writes[w]));]=]
  [=[MK_TRY(v == NULL ? mk_verify_value(v, use->instruction, use->slot, &v->writes[w]) : MK_OK);]=])
# A combine of splits depends on as many as the highest position has.
mk_omission(certain vm/verify/access.c
  [=[.long_only = only_when_long(v, in)};]=]
  [=[.long_only = v == NULL && only_when_long(v, in)};]=])
# What a search may leave unread counts as read.
mk_omission(used_certain vm/verify/access.c
  [=[info->when == MK_WHEN_USED ? NOT_CERTAIN : 0;]=]
  [=[info->when == MK_WHEN_USED && in == NULL ? NOT_CERTAIN : 0;]=])
# An output may be written in part.
mk_omission(O01 vm/verify/access.c
  [=[if (covered < cols) {]=]
  [=[if (covered < cols && v == NULL) {]=])

# Order.

# A program may hang.
mk_omission(D01 vm/verify/order.c
  [=[return left == 0 ? MK_OK : mk_report_deadlock(run);]=]
  [=[return left == 0 || run->v != NULL ? MK_OK : mk_report_deadlock(run);]=])
# A read may come before the write.
mk_omission(R01 vm/verify/race.c
  [=[return race(v, "R01", actor, i, "reads", writer->instruction, "writes");]=]
  [=[v->report.conflicts++;]=])
# What is read may never have been written.
mk_omission(R01_unwritten vm/verify/race.c
  [=[if (!segment->written && b->kind != MK_KIND_KV) {]=]
  [=[if (!segment->written && b->kind == MK_KIND_COUNT) {]=])
# Plain words may be overwritten before they have been read.
mk_omission(R02_plain vm/verify/race.c
  [=[return race(v, "R02", actor, both, "writes", reader->instruction, "reads");]=]
  [=[v->report.conflicts++;]=])
# Stamped words may be overwritten before they have been read.
mk_omission(R02_stamped vm/verify/stamps.c
  [=[if (mk_clock_at(dep, reader->thread) < reader->index) {]=]
  [=[if (mk_clock_at(dep, reader->thread) < reader->index && v == NULL) {]=])
# Two writes need no order.
mk_omission(R03 vm/verify/race.c
  [=[return race(v, "R03", actor, i, "writes", writer->instruction, "writes");]=]
  [=[v->report.conflicts++;]=])
# A signal counts as arrived where the others reach the threshold without it.
mk_omission(arrived vm/verify/counters.c
  [=[if (forced == MK_NONE_INDEX && total - later < b->threshold) {]=]
  [=[if (forced == MK_NONE_INDEX && total - later <= b->threshold) {]=])
# The loader of the cache waits for what its instruction waits for.
mk_omission(loader vm/verify/order.c
  [=[(!writes && (acts->updates >> slot & 1) != 0);]=]
  [=[(!writes && (acts->updates >> slot & 1) != 0 && v == NULL);]=])
# The loader of what others append to in this step knows what its consumer knows, by whatever it has waited for.
mk_omission(appended vm/verify/order.c
  [=[const bool loaded = (acts->loaded >> slot & 1) != 0 ||]=]
  [=[const bool loaded = ((acts->loaded >> slot & 1) != 0 && v == NULL) ||]=])

# Work lists.

# An SM may follow the row of another one.
mk_omission(L01_row vm/verify/listed.c
  [=[if (work->rows != 1 || work->row != v->queue_of[index] || b->rows != v->program->queue_count) {]=]
  [=[if (work->rows != 1 || b->rows != v->program->queue_count) {]=])
# Others may touch what the list is about.
mk_omission(L01_others vm/verify/listed.c
  [=[if (!itself && same_buffer(in, slot, part, own[i])) {]=]
  [=[if (v == NULL && !itself && same_buffer(in, slot, part, own[i])) {]=])
# A queue may leave out its reductions.
mk_omission(L02_reduce vm/verify/listed.c
  [=[return reduce != MK_NONE_INDEX
]=]
  [=[return reduce != MK_NONE_INDEX || v != NULL
]=])
# SMs may follow their rows with other buffers or parameters.
mk_omission(L03 vm/verify/listed.c
  [=[return same ? MK_OK]=]
  [=[return same || v != NULL ? MK_OK]=])

list(LENGTH MK_OMISSION_NAMES count)
list(TRANSFORM MK_OMISSION_NAMES PREPEND mk_mutate_ OUTPUT_VARIABLE omission_targets)
add_custom_target(mk_omissions DEPENDS ${omission_targets})
list(JOIN MK_OMISSION_NAMES "\n" omission_lines)
file(WRITE ${PROJECT_BINARY_DIR}/omissions/names "${omission_lines}\n")
message(STATUS "${count} verifiers with an omission: target mk_omissions")
