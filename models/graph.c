/* See graph.h. */
#include "models/graph.h"

#include <stdio.h>

void mk_graph_free(mk_graph *graph) {
  if (graph == NULL) {
    return;
  }
  mk_free(graph->weights);
  mk_free(graph->values);
  mk_free(graph->nodes);
  mk_free(graph);
}

mk_status mk_graph_add_weight(mk_graph *graph, const mk_weight *weight, int *index) {
  MK_TRY(mk_grow(&graph->weights, &graph->weight_capacity, graph->weight_count + 1, sizeof *weight));
  *index = (int)graph->weight_count;
  graph->weights[graph->weight_count++] = *weight;
  return MK_OK;
}

mk_status mk_graph_add_value(mk_graph *graph, uint32_t length, int *index, const char *format, ...) {
  MK_TRY(mk_grow(&graph->values, &graph->value_capacity, graph->value_count + 1, sizeof(mk_value)));
  mk_value *value = &graph->values[graph->value_count];
  va_list args;
  va_start(args, format);
  vsnprintf(value->name, sizeof value->name, format, args);
  va_end(args);
  value->length = length;
  *index = (int)graph->value_count++;
  return MK_OK;
}

mk_status mk_graph_add_node(mk_graph *graph, const mk_node *node) {
  MK_TRY(mk_grow(&graph->nodes, &graph->node_capacity, graph->node_count + 1, sizeof *node));
  graph->nodes[graph->node_count++] = *node;
  return MK_OK;
}

/* Rows that follow each other, one source after the other. */
static bool stacked_row(const mk_weight *weight, uint32_t row, uint32_t *source, uint32_t *source_row) {
  for (uint32_t s = 0; s < weight->source_count; s++) {
    if (row < weight->sources[s].rows) {
      *source = s;
      *source_row = row;
      return true;
    }
    row -= weight->sources[s].rows;
  }
  return false;
}

bool mk_weight_row(const mk_weight *weight, uint32_t head_dim, uint32_t row, uint32_t *source, uint32_t *source_row) {
  uint32_t in_tile = row % 16, half = in_tile / 8, lane = in_tile % 8;
  switch (weight->pack) {
    case MK_PACK_GLU:
      *source = half;
      *source_row = row / 16 * 8 + lane;
      return *source_row < weight->sources[half].rows;
    case MK_PACK_ROPE:
      if (row < weight->sources[0].rows + weight->sources[1].rows) {
        uint32_t head = row / head_dim, pair = row % head_dim / 16 * 8 + lane;
        uint32_t rotary = (weight->rotary != 0 ? weight->rotary : head_dim) / 2; /* pairs that are rotated */
        row = head * head_dim + (pair < rotary ? pair + half * rotary : pair + rotary + half * (head_dim / 2 - rotary));
      }
      return stacked_row(weight, row, source, source_row);
    case MK_PACK_ROWS:
    case MK_PACK_VECTOR:
    case MK_PACK_GLU_VECTOR:
    case MK_PACK_FREQUENCIES:
    case MK_PACK_QKV_VECTOR:
      break;
  }
  return stacked_row(weight, row, source, source_row);
}
