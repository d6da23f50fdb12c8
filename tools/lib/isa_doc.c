/* See isa_doc.h. */
#include "tools/lib/isa_doc.h"

#include <errno.h>
#include <string.h>

#include "vm/program/program.h"

static const char introduction[] =
    "<!-- Made by `mkvm isa` from vm/program/opcodes.def. To change it, change the table (or tools/lib/isa_doc.c) and\n"
    "run `mkvm isa > docs/ISA.md`; a test fails while the two differ. -->\n"
    "# The instruction set\n"
    "\n"
    "A program is a set of queues, one per SM, of 128-byte instructions, together with the buffers they work on,\n"
    "the counters they wait for and signal, and the declared ranges of the step parameters. One pass over all\n"
    "queues is an *epoch*, which computes one step: a token of each row. The same program runs on every machine. The\n"
    "structures are in `vm/program/program.h` and `vm/program/instruction.h`; `mkvm disasm` prints a program as\n"
    "text.\n";

static const char word[] =
    "\n"
    "## The instruction word\n"
    "\n"
    "32 words of 32 bits, little-endian. Instruction version %d.\n"
    "\n"
    "```\n"
    " word   31            24 23            16 15             8 7              0\n"
    "      +-----------------+--------+-------+----------------+----------------+\n"
    "  0   |      flags      | signals| waits |    version     |     opcode     |\n"
    "      +-----------------+--------+-------+----------------+----------------+\n"
    "  1   |                                uid                                 |\n"
    "      +----------------------------------+---------------------------------+\n"
    " 2-5  |             counter              |            threshold            |  waits 0..%d\n"
    " 6-7  |             counter              |             amount              |  signals 0..%d\n"
    "      +----------------------------------+---------------------------------+\n"
    "  8   |                  pages streamed through the ring                   |\n"
    "  9   |              layer               |  resident (units of %d bytes)   |\n"
    "      +----------------------------------+---------------------------------+\n"
    "      |              buffer              |              flags              |  operands of extent `part`, in slot\n"
    "      |               row                |              rows               |  order: number p at 10 + 3 p\n"
    "      |               col                |              cols               |\n"
    "      +----------------------------------+---------------------------------+\n"
    "10-31 |       buffer of whole 1          |       buffer of whole 0         |  then those of extent `whole`, "
    "in slot\n"
    "      |       buffer of whole 3          |       ...                       |  order, two to a word\n"
    "      +----------------------------------+---------------------------------+\n"
    "      |                                zero                                |\n"
    "      +--------------------------------------------------------------------+\n"
    "      |                            parameter i                             |  at 31 - i\n"
    "      +--------------------------------------------------------------------+\n"
    "```\n"
    "\n"
    "- `uid` is unique in the program and names the instruction in messages, traces and fault records.\n"
    "- Flag %d of an instruction (`fused` in text): a machine may do a `score` within the `head` before it in its\n"
    "  queue, and lines of a `combine` within an `attention` on any SM. Without it no machine does. The opcodes below\n"
    "  say what may be fused, rule S12 where.\n"
    "- Where operands and parameters lie follows from the opcode's table below. An operand of extent `whole` is its\n"
    "  buffer from end to end, and the word holds the buffer's number alone, or %d where the operand is absent.\n"
    "- Rows and columns count tiles of the operand's buffer. Flag %d (`@token` in text): the element row is the\n"
    "  token of the step, and `row`, `rows` span the tiles in which any token of the declared range lies.\n"
    "- Unused waits, signals, operands and parameters are zero. Float parameters are stored by their bits.\n"
    "- `pages` is how many pages of the ring the loader fills for this instruction (paged KV: at the largest\n"
    "  position); `resident` is the shared memory its staged inputs take. Both follow from the operands by one rule\n"
    "  (`mk_instruction_pages`, `mk_instruction_resident`), and the verifier checks them.\n"
    "- `layer` %d (0x%04x): the instruction belongs to no layer.\n";

static const char stores[] =
    "\n"
    "## Buffers\n"
    "\n"
    "A buffer is a grid of tiles: rows x cols elements in tiles of tile_rows x tile_cols. How its elements lie in\n"
    "memory:\n"
    "\n"
    "| store | layout |\n"
    "|---|---|\n"
    "| `plain` | row-major elements |\n"
    "| `stamped` | 64-bit words: low half one f32 or u32, or two bf16 (even index low); high half the generation |\n"
    "| `tiles` | bf16 in tiles of 16 x 16, padded with zeros. A row tile is a run of 512-byte steps, one per 16 "
    "columns; a step holds for each of 32 lanes the 8 elements of its A fragment of mma.m16n8k16: lane 4 g + t has "
    "W[g][2t], W[g][2t+1], W[g+8][2t], W[g+8][2t+1], W[g][2t+8], W[g][2t+9], W[g+8][2t+8], W[g+8][2t+9]. A "
    "`weight` may be of dtype `e4m3`, `i8` or `i4`, too: strips of 128 columns, of codes, scales and zeros "
    "(vm/program/strips.h, docs/NUMERICS.md) |\n"
    "| `blocks` | paged KV, bf16: [block][kv head][K, V], K and V in 16 x 16 tiles in the order of a step: the "
    "tile of tokens 16 i to 16 i + 15 and dims 16 j to 16 j + 15 is number i * head_dim / 16 + j; rows of a K tile "
    "are tokens and columns dims, rows of a V tile are dims and columns tokens. Row s stands for all tokens t of "
    "slot c with (t / span_tokens + first(c)) mod rows = s, column h for KV head h; row c of the block table maps "
    "tokens [block_tokens b, block_tokens (b + 1)) of slot c to a physical block. A cache may be of dtype `e4m3`, "
    "too, with a scale for each token and KV head (vm/program/strips.h, docs/NUMERICS.md) |\n"
    "\n"
    "Three kinds of operand take either of two stores: a `value` is `stamped`, where stamps order its writers and\n"
    "readers, or `plain`, where release counters do; `input` is a value, or the row of a `tiles` buffer that the\n"
    "step's token chooses; `residual` is `plain`, or such a row.\n"
    "\n"
    "The step state has {slot, position, token, active, chooses} for each row of a step, and `next` reads those of\n"
    "the next step from the plan, its operand `plan`: [steps][rows] times the words slot, position, token (2^32 -\n"
    "1: what the slot chose last), flags (1 active, 2 chooses, 4 token of a prompt). Its ring is [steps][rows]:\n"
    "what each row chose, 2^31 - 1 for one that did not, with bit 31 set where logits were NaN.\n"
    "\n"
    "A program whose range `batch` is 1..T computes T rows per step, T a power of two up to 1024, and its range\n"
    "`slot` says of how many sequences they may be. With several rows, vectors that a step computes have T lines in\n"
    "one tile (tile_rows = T), and the semantics below hold for each line; lines of idle rows are neither written\n"
    "nor waited for. Beyond 128 rows they have tiles of 128 lines, of which an instruction computes one;\n"
    "`attention` and `append` read all of them, and parts of attention lie in one tile. `attention` of row u of the\n"
    "cache does split (u - first(c)) mod splits of a row in slot c: first(c) is splits / 16 times c mod 16 with its\n"
    "four bits in reverse, rounded down. `sampling`, `bias` and `counts` have a line for each slot, by which its\n"
    "rows are drawn; a `score` goes through its lines in order, so a row's counts hold the tokens of its slot up to\n"
    "its own.\n";

static const char order[] =
    "\n"
    "## What orders instructions\n"
    "\n"
    "An SM has three threads of execution, one per role: the *loader* copies weights and KV blocks into pages, the\n"
    "*consumer* computes, the *storer* writes results and signals. The verifier and the machines know these rules\n"
    "and no others.\n"
    "\n"
    "1. **Queue order.** Each role walks the SM's queue in order. Within an instruction the loader's part happens\n"
    "   before the consumer's and the consumer's before the storer's. The consumer of the next instruction does not\n"
    "   wait for the storer of this one. The loader runs ahead as far as the page ring lets it. It loads blocks of a\n"
    "   cache only after the `next` of the epoch before is over on its SM, and, where other instructions write to\n"
    "   that cache in the same step, only after the instruction's waits are over.\n"
    "2. **Release counter.** All that happens before a signal happens before whatever follows a wait that needed\n"
    "   that signal.\n"
    "3. **Relaxed counter.** Orders nothing; it makes waiting cheap.\n"
    "4. **Stamp.** The reader of a stamped word waits until the word carries the generation of its epoch, which is\n"
    "   e + 1 in epoch e, counted from the last time the buffers were cleared. That orders this word and publishes\n"
    "   nothing else. It also means that the reader runs after the writer, and together with rule 1 that is how the\n"
    "   reuse of a stamped word is proven.\n"
    "5. **Fusion.** A machine may do a `score` that is marked as fused within the `head` before it in its queue; its\n"
    "   stamps then prove no signal of that one. It may do lines of a marked `combine` within an `attention` on any\n"
    "   SM; its stamps then prove nothing of its queue. What is not marked is done by itself.\n"
    "\n"
    "A wait holds when `counter >= epoch * total + threshold` in wrap-safe arithmetic: counters only grow, and\n"
    "`total` is the sum of a counter's signals in one epoch. A wait orders only after signals that must have\n"
    "arrived in every run.\n";

static const char columns[] =
    "\n"
    "## Opcodes\n"
    "\n"
    "`role` is the thread that touches the operand (`update`: the loader reads the blocks, the consumer appends).\n"
    "`when` says what must have happened first: `early` nothing, the data are constant; `state` the step state of\n"
    "this epoch is known; `waits` the instruction's waits hold; `used` the same, but only what the step uses is\n"
    "waited for and read: `combine` the rows in use at the position, always the first, `sift` and `draw` what the\n"
    "sampling parameters ask for; `listed` only what the SM's row of the work list names is waited for, read or\n"
    "written ([MLA.md](MLA.md)). `extent` says what the operand names: `part` a rectangle of its buffer's tiles,\n"
    "`whole` the buffer. *Step state* is the rows of the step, private to an SM and double-buffered by the parity\n"
    "of the epoch. `content` is what values mean: what is read as candidates, fronts, rounds, scores or parts has\n"
    "been written as such. An `optional` operand may be empty. An opcode that *streams* takes its inputs word by\n"
    "word, and may publish a result before it has read all of them; the others stage their inputs first.\n"
    "\n"
    "y = W x is a matrix-vector product over the row tiles and K columns that the `weight` operand names; norm(x) =\n"
    "bf16(x * (plus + gain)) / sqrt(mean(x^2) + eps); where a product has `squares`, x is bf16(x * gain) already, and\n"
    "they are the sums of the squares of what that was made of, one for each chain of 128 columns (both by `norm`).\n";

static const struct {
  const char *name, *meaning;
} meanings[] = {
    {"eps", "added to the mean square of what is normed; of `attention`: 0: q and k are not normed"},
    {"width", "elements in x, the divisor of the mean square (columns beyond it are padding)"},
    {"gains", "elements of the gain, which biases follow; 0: all of it"},
    {"rope_tiles", "row tiles of the whole weight, from its first, that hold queries and keys and are rotated"},
    {"head_dim", "elements of a head, 64, 128 or 256"},
    {"scale", "factor on q k before the softmax"},
    {"splits", "parts into which the tokens of a KV head are dealt, span by span"},
    {"group", "query heads that share the KV head"},
    {"span", "consecutive tokens that one split takes at a time; a span with no token yet is not in use"},
    {"spans", "of a split, each of which has a part"},
    {"extras", "a sum of 1 (biases), 2 (gains) and 4 (squares), or 0"},
    {"window", "how many tokens, up to its own, a row sees; 0: all"},
    {"plus", "added to each gain, where these are 1 + what a checkpoint has; or 0"},
    {"gelu", "1: GELU of the gate, in place of SiLU; or 0"},
    {"biased", "1: `gain` goes on with biases; or 0"},
    {"factor", "on the result, or on what comes in; 0: none"},
    {"query_tiles", "tiles of 16 that hold queries, from the first"},
    {"key_tiles", "tiles of 16 that hold keys, after those"},
    {"vocab", "rows of logits that are tokens (rows beyond it are padding)"},
    {"share", "of the items of a work list, the first that it takes"},
    {"shares", "so many share the items: each takes every so manyth; 0: there is no work list"},
    {"tokens", "new tokens of a sequence, causal among themselves"},
    {"first", "the first of this SM's tiles of 16 tokens"},
    {"count", "how many tiles of tokens the SM has"},
};

const char *mk_isa_param_meaning(const char *name) {
  for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
    if (strcmp(meanings[i].name, name) == 0) {
      return meanings[i].meaning;
    }
  }
  return NULL;
}

/* The name of a column's value; an enumeration that has grown shows as "?", which a test refuses. */
#define NAME_OF(names, index) ((size_t)(index) < sizeof(names) / sizeof(names)[0] ? (names)[index] : "?")

/* As code, in lines of at most COLUMNS characters, which Markdown joins again. The marks at both ends differ from those
 * that the text has inside. */
static void write_filled(const char *text, FILE *out) {
  enum { COLUMNS = 120 };
  bool inside = strchr(text, '`') != NULL;
  const char *marks = inside ? "``" : "`";
  size_t column = strlen(marks);
  fputs(marks, out);
  for (bool first = true; *text != '\0'; first = false) {
    size_t length = strcspn(text, " ");
    size_t next = length + strspn(text + length, " ");
    size_t end = text[next] == '\0' ? strlen(marks) : 0;
    if (!first && column + 1 + length + end > COLUMNS) {
      fputc('\n', out);
      column = 0;
    } else if (!first) {
      fputc(' ', out);
      column++;
    }
    fprintf(out, "%.*s", (int)length, text);
    column += length;
    text += next;
  }
  fputs(marks, out);
}

static void write_opcode(uint32_t opcode, const mk_opcode_info *info, FILE *out) {
  static const char *const uses[] = {"unused", "read", "written"};
  static const char *const accesses[] = {"read", "write", "update"};
  static const char *const whens[] = {"early", "state", "waits", "used", "listed"};
  static const char *const contents[] = {"numbers", "gain",   "table",  "work list", "parts",
                                         "logits",  "scores", "fronts", "rounds",    "candidates"};
  static const char *const entries[] = {"", "the items of the work list", "the reductions of the work list"};
  static const char *const fusions[] = {"", "in every step", "for lines that use one row of it"};
  static const char *const extents[] = {"part", "whole"};
  static const char *const kinds[] = {"plain", "stamped", "tiles", "blocks", "value", "input", "residual"};
  fprintf(out, "\n### %u `%s`\n\n", opcode, info->name);
  write_filled(info->semantics, out);
  fprintf(out, "\n\nStep state: %s.", NAME_OF(uses, info->state));
  fputs(info->streams ? " Streams." : "", out);
  if (info->families_only || info->wide_only) {
    fprintf(out, " On a GPU for %s%s alone.", info->wide_only ? "wide programs" : "other families than Llama",
            info->wide_only && info->families_only ? " of other families than Llama" : "");
  }
  if (info->entries != MK_ENTRIES_NONE) {
    fprintf(out, " Carries out %s.", NAME_OF(entries, info->entries));
  }
  if (info->fusion != MK_FUSION_NONE) {
    fprintf(out, " May be fused into the `%s` that leaves `%s`, %s.", mk_opcode_lookup(info->fused_into)->name,
            info->operands[info->fused_slot].name, NAME_OF(fusions, info->fusion));
  }
  fprintf(out,
          "\n\n| slot | operand | access | role | when | extent | dtype | store | content "
          "|\n|---|---|---|---|---|---|---|---|---|\n");
  for (uint32_t i = 0; i < info->operand_count; i++) {
    const mk_operand_info *o = &info->operands[i];
    fprintf(out, "| %u | `%s` | %s | %s | %s | %s | %s | %s | %s%s |\n", i, o->name, NAME_OF(accesses, o->access),
            mk_role_name(o->role), NAME_OF(whens, o->when), NAME_OF(extents, o->extent), mk_dtype_name(o->dtype),
            NAME_OF(kinds, o->store), NAME_OF(contents, o->content), o->optional ? ", optional" : "");
  }
  if (info->param_count == 0) {
    return;
  }
  fprintf(out, "\n| parameter | name | type | meaning |\n|---|---|---|---|\n");
  for (uint32_t i = 0; i < info->param_count; i++) {
    const char *meaning = mk_isa_param_meaning(info->params[i].name);
    fprintf(out, "| %u | `%s` | %s | %s |\n", i, info->params[i].name, info->params[i].is_float ? "f32" : "u32",
            meaning == NULL ? "" : meaning);
  }
}

mk_status mk_isa_write(FILE *out) {
  fputs(introduction, out);
  fprintf(out, word, MK_INSTRUCTION_VERSION, MK_MAX_WAITS - 1, MK_MAX_SIGNALS - 1, MK_RESIDENT_UNIT, MK_FUSED,
          MK_ABSENT, MK_OPERAND_TOKEN_ROW, MK_NO_LAYER, MK_NO_LAYER);
  fputs(stores, out);
  fputs(order, out);
  fputs(columns, out);
  for (uint32_t op = MK_OP_NONE + 1; op < MK_OP_COUNT; op++) {
    write_opcode(op, mk_opcode_lookup(op), out);
  }
  fprintf(
      out,
      "\n## Limits\n\nWaits %d, signals %d, operands %d and parameters %d per instruction, the latter two as far "
      "as they go\ninto the word's 88 bytes (12 for a `part`, 2 for a `whole`, 4 for a parameter). Tiles per buffer "
      "side, buffers,\ncounters, and signals per counter and epoch: %d.\n",
      MK_MAX_WAITS, MK_MAX_SIGNALS, MK_MAX_OPERANDS, MK_MAX_PARAMS, MK_MAX_COORDINATE);
  return ferror(out) ? mk_error(MK_ERR_RUNTIME, "the manual cannot be written: %s", strerror(errno)) : MK_OK;
}
