/* The inside of the GPU machine, shared by its files: machine.c (life, copies to and from buffers), refuse.c and
 * refuse_wide.c (what it takes), arena.c (memory of buffers, lent ones too), dealt.c (a rank's part of it), peers.c
 * (several ranks), windows.c (memory of several processes; group_internal.h has the rest of these), upload.c (weights),
 * run.c (a launch), mla.c (launches that follow a work list), trace.c (the recorder) and extra.c (fill, bandwidth). */
#ifndef MK_GPU_MACHINE_INTERNAL_H
#define MK_GPU_MACHINE_INTERNAL_H

#include "vm/gpu/driver.h"
#include "vm/gpu/image.h"
#include "vm/gpu/launch.h"
#include "vm/gpu/machine.h"
#include "vm/gpu/nccl.h"

/* Device memory that one launch writes and the host reads after it. It is clean before a launch: only a fault leaves
 * something in it that a later launch would look at, and then the machine is cleared. */
typedef struct mk_gpu_control {
  mk_gpu_fault fault;
  uint32_t abort;
  uint32_t epochs_done;
  mk_gpu_clocks clocks;
} mk_gpu_control;

enum {
  MK_GPU_FLIGHTS = 2,          /* launches that may be in the stream at a time, of those that the host follows */
  MK_GPU_CONTROL_STRIDE = 256, /* bytes from the control of one of them to the other's */
};
MK_STATIC_ASSERT(sizeof(mk_gpu_control) <= MK_GPU_CONTROL_STRIDE, "flights have a control each");

typedef struct mk_gpu_pinned { /* followed by the token ring, the plan of a launch on its way to the GPU, and its work
                                * lists */
  uint32_t stop;
  uint32_t pad[31]; /* the line of its own that the kernel polls */
  mk_gpu_control control[MK_GPU_FLIGHTS];
} mk_gpu_pinned;

enum { MK_GPU_RING_AT = 512 }; /* bytes from the start of the pinned memory */
MK_STATIC_ASSERT(sizeof(mk_gpu_pinned) <= MK_GPU_RING_AT, "the token ring begins after the pinned words");

/* A launch that the host follows while it runs. */
typedef struct mk_gpu_flight {
  mk_cu_event_ref start, end; /* of the kernel */
  mk_cu_event_ref sent;       /* its plan is on the GPU, of a launch that was queued while another one ran */
  mk_cu_event_ref ranked;     /* its rankings are here, if there are any */
  mk_cu_event_ref done;       /* the launch has ended, and its control is here */
  bool ahead;                 /* its plan lies where that of the launch before it does not */
  mk_gpu_params params;
  const mk_gpu_ranks *ranks; /* NULL: none */
  uint32_t first_position;
} mk_gpu_flight;

/* What a rank of several has of a buffer that is dealt: tiles that are neighbours. They are `count` runs of `bytes`
 * bytes. The first one is at byte `first` of the buffer and at address `at`; from one to the next it is `stride` bytes
 * in the buffer, and `step` bytes on the GPU. */
typedef struct mk_gpu_share {
  uint32_t buffer;
  uint32_t number;      /* by which the kernel knows it: the buffer's, of later shares one beyond all buffers */
  uint32_t unit, units; /* row tiles of a weight, KV heads of a cache, columns of tiles of all else */
  uint32_t count;
  uint64_t first, bytes, stride, step;
  mk_cu_address at;
} mk_gpu_share;

/* Of a rank that is a process: the memory that other ranks write (windows.c). */
typedef struct mk_gpu_window {
  void *memory; /* NULL: there is none */
  uint64_t bytes;
  mk_nccl_comm_ref comm; /* of a machine beside another one that one's */
  mk_nccl_window_ref window;
  mk_cu_address bases[MK_GPU_MOST_RANKS]; /* here: of each rank's */
} mk_gpu_window;

/* A machine for a program of several ranks is one mk_gpu for each of them that is in this process: all of them, or one.
 * Callers know the first of these alone, which owns the others; functions of one file for another are for one rank
 * unless they say otherwise. */
struct mk_gpu {
  const mk_program *program;
  uint32_t rank, ranks;
  uint32_t here;                      /* of the first one: how many ranks are in this process */
  mk_gpu *of_rank[MK_GPU_MOST_RANKS]; /* of the first one: those, itself first */
  mk_group *group;                    /* NULL: there are no others */
  uint32_t number;                    /* in the group */
  mk_gpu_window window;               /* in a group */
  mk_gpu_control *told;               /* of rank 0 in a group: how a launch ended, by rank */
  uint32_t queues;                    /* of this rank: the blocks of a launch */
  uint32_t neighbours;                /* ranks on the same GPU, this one too; in tests alone more than one */
  mk_gpu_share *shares;               /* several ranks: of all dealt buffers, in the order of buffers */
  size_t *share_of;                   /* [buffers + 1]: where a buffer's begin */
  size_t share_count, more_buffers;   /* more_buffers: shares after the first one of their buffer */
  mk_gpu_options options;
  const mk_driver *driver;
  mk_cu_device device;
  char name[128];
  int sms;
  bool mla;       /* it is for the MLA configuration */
  bool pairs_fit; /* mla: blocks 2 i and 2 i + 1 of a launch could all run close to each other */
  bool paired;    /* they do, as the work list asks for it */
  bool planned;   /* it takes plans */
  uint32_t rows;  /* per step */
  bool retained;  /* the context */
  bool lost;      /* a kernel does not end: no driver call that waits for it may be made */
  mk_cu_context_ref context;
  int image; /* mk_gpu_image_part of the kernel; the next part is the one that records and takes delays */
  mk_cu_module_ref module, recording_module;
  mk_cu_function_ref kernel, recording; /* the second one: NULL until it is needed */
  mk_cu_stream_ref stream;
  /* Beside it, so that no kernel waits in vain: plans for the GPU, and what a launch leaves for the host. */
  mk_cu_stream_ref sending, taking;
  mk_gpu_flight
      flights[MK_GPU_FLIGHTS]; /* those in the stream are the last `in_flight` up to the one with number `queued` */
  uint32_t queued, in_flight;
  mk_gpu_control ended;            /* of the run that ended last */
  mk_cu_address weights, kv, work; /* arenas; a machine beside another one has the third alone */
  mk_cu_address tables;            /* instructions, queues, buffers, totals, counters, controls */
  mk_cu_address ahead;             /* as large as the buffer of plans: of flights that are ahead */
  mk_cu_address *places;           /* of buffers */
  uint16_t *box_tiles;             /* of weights, in wide steps: the row tiles of a copy by their tensor maps */
  const mk_gpu *lender;            /* while the machine opens */
  bool lent;                       /* weights and KV cache are another machine's */
  mk_cu_address counters, control;
  mk_cu_address trace;   /* 0: the recorder is off */
  mk_cu_address flushed; /* 0: mk_gpu_flush was not called yet */
  mk_cu_module_ref flush_module;
  mk_cu_function_ref flush; /* reads that memory; or, told to read no bytes, does nothing */
  mk_cu_address scratch;    /* of several rows: sums that wait */
  mk_cu_address ranked;     /* rank.c: what its kernel writes; 0, and the next one NULL: nobody has asked yet */
  void *ranked_pinned;      /* the part of that which the host reads, for each flight */
  mk_cu_module_ref rank_module;
  mk_cu_function_ref rank_kernel;
  uint64_t counter_bytes;
  mk_gpu_pinned *pinned;
  mk_cu_address pinned_address;
  volatile uint64_t *ring;
  uint64_t ring_entries;
  mk_plan_buffers buffers; /* of a program that takes plans */
  uint32_t *block_table;   /* what was written to that buffer; NULL: the program has none */
  mk_step_row *plan;       /* pinned */
  uint32_t *lists;         /* pinned: the plan's work lists, of a wide program of several slots */
  mk_gpu_params params;    /* all but the step */
  uint64_t maps[2][16];    /* mla: tensor maps, as mk_gpu_mla_params has them */
  mk_gpu_mla_inputs inputs;
  uint32_t first_epoch;
  uint32_t last_position; /* where the last run began */
  float time_ms, rank_ms;
  uint32_t steps;
  uint64_t launches;
};

/* MK_OK for result 0; else the driver's message. */
mk_status mk_gpu_check(const mk_gpu *gpu, mk_cu_result result, const char *what);
/* Makes the context current in this thread; an error once a kernel was lost. */
mk_status mk_gpu_enter(const mk_gpu *gpu);
/* Copies, through the stream, and waits for them. There is no other way between host and GPU: a copy outside of the
 * stream may return with pageable memory still on its way (CUDA Driver API, "API synchronization behavior"), and a
 * launch does not wait for it. */
mk_status mk_gpu_copy_in(const mk_gpu *gpu, mk_cu_address to, const void *from, uint64_t bytes, const char *what);
mk_status mk_gpu_copy_out(const mk_gpu *gpu, void *to, mk_cu_address from, uint64_t bytes, const char *what);
/* Checks that what the kernels are compiled for is what the scheduler planned and the verifier proved: MK_ERR_FILE, and
 * a message that says what differs (refuse.c). */
mk_status mk_gpu_check_program(const mk_program *program);
/* The part of this check that concerns the instructions of a program of wide steps, and their order (refuse_wide.c). */
mk_status mk_gpu_check_wide(const mk_program *program);
/* Names what the instruction asks for and no kernel has so far. NULL: nothing. */
const char *mk_gpu_find_missing(const mk_instruction *in);
/* Names a parameter of the instruction that the kernels for plain Llamas have no code for: those of other families.
 * wide: what is normed has squares and no gain. NULL: none. */
const char *mk_gpu_find_parameter(const mk_instruction *in, bool wide);
/* Whether the program has such parameters, or opcodes: then kernels for other families run it. */
bool mk_gpu_is_of_family(const mk_program *program);
/* Whether it has quantised weights or a KV cache in fp8, whose kernels take all families. */
bool mk_gpu_is_quantised(const mk_program *program);
/* Whether the program draws: it has instructions that score. */
bool mk_gpu_samples(const mk_program *program);
/* image.c. The kernel that runs the machine's program; its recording twin, where there is one, comes next. */
mk_gpu_image_part mk_gpu_image_of(const mk_gpu *gpu);
bool mk_gpu_image_records(int part); /* whether there is one */
/* tables.c. Where the tables of the program lie in their allocation, as offsets: the rank's instructions, queues and
 * buffers, the totals of counters, counters, controls, and what else peers.h and wide.c say. */
typedef struct mk_gpu_tables {
  uint64_t instructions, queues, buffers, totals, counters, control, maps, peers, waiters, bytes;
} mk_gpu_tables;
mk_gpu_tables mk_gpu_plan_tables(const mk_gpu *gpu);
/* Fills in the image of them, which is zero; all addresses are known. MK_ERR_RUNTIME for memory or the driver. */
mk_status mk_gpu_fill_tables(const mk_gpu *gpu, const mk_gpu_tables *plan, uint8_t *image);
/* wide.c. The tensor maps by which the kernel for wide steps copies what is multiplied: a place for each buffer, which
 * stays empty for all others. */
size_t mk_gpu_map_count(const mk_gpu *gpu);
mk_status mk_gpu_find_box_tiles(mk_gpu *gpu); /* MK_ERR_RUNTIME for memory */
/* The bytes of the work lists of so many steps; 0: the program has none. */
uint64_t mk_gpu_list_bytes(const mk_gpu *gpu, uint32_t steps);
mk_status mk_gpu_encode_maps(const mk_gpu *gpu, void *to);
/* MLA programs: what their kernel is compiled for (MK_ERR_FILE), and their tensor maps once there is memory. */
mk_status mk_gpu_check_mla(const mk_program *program);
mk_status mk_gpu_open_mla(mk_gpu *gpu);
/* Looks at what is written to a buffer of an MLA program: the work list decides whether blocks of a launch run in
 * pairs. */
void mk_gpu_look_at_list(mk_gpu *gpu, size_t buffer, uint64_t offset, const void *data, uint64_t bytes);
/* How the MLA kernel is launched. */
typedef struct mk_gpu_mla_launch {
  mk_cu_launch_attribute attributes[2];
  mk_cu_launch_config config; /* names the attributes */
} mk_gpu_mla_launch;
void mk_gpu_mla_launch_of(const mk_gpu *gpu, bool paired, mk_gpu_mla_launch *out);
/* extra.c: queues a kernel that displaces what the L2 holds, or one with nothing to do. */
mk_status mk_gpu_flush(mk_gpu *gpu, bool written);
mk_status mk_gpu_start_empty(mk_gpu *gpu);
/* How many threads a block of the program's kernel has. */
uint32_t mk_gpu_threads(const mk_gpu *gpu);
uint32_t mk_gpu_shared_bytes(const mk_gpu *gpu);
/* Where a flight's control is, and what a launch is told of it. Several ranks, which have one flight at a time, have
 * one control, as they know each other's. */
mk_cu_address mk_gpu_control_of(const mk_gpu *gpu, size_t flight);
void mk_gpu_take_control(const mk_gpu *gpu, size_t flight, mk_gpu_params *params);
/* rank.c: queues the kernel that ranks logits of the last step of a flight with rankings, after it; and fills them in
 * once all that was queued for them has ended. */
mk_status mk_gpu_start_ranks(mk_gpu *gpu, const mk_gpu_flight *flight);
void mk_gpu_take_ranks(const mk_gpu *gpu, const mk_gpu_flight *flight);
/* Puts one launch of the program's kernel into the stream. */
mk_status mk_gpu_start(mk_gpu *gpu, mk_gpu_params *params);
/* Before a launch: no record counts. */
mk_status mk_gpu_trace_prepare(mk_gpu *gpu);
/* Loads the kernel that records, once; before a launch, and of several ranks before any of them starts. */
mk_status mk_gpu_need_recording(mk_gpu *gpu);
/* The records of a track from its first `count` notes, which lie in turns `stride` notes apart, times in ticks of the
 * SM's clock. `records`: at least two places a note. Returns how many there are. */
uint32_t mk_gpu_records_of(const mk_gpu_note *notes, size_t stride, uint32_t count, mk_trace_record *records);
/* arena.c. Makes the arenas, and finds the places of all buffers; `tables`: how many more bytes are needed. In a group
 * counters and control get their places, too: they are part of the memory that all ranks see. */
mk_status mk_gpu_allocate(mk_gpu *gpu, uint64_t tables);
mk_cu_address mk_gpu_address(const mk_gpu *gpu, size_t buffer);
uint64_t mk_gpu_bytes(const mk_gpu *gpu, size_t buffer); /* that it takes there */
/* The offset of `bytes` more in an arena that ends at *end. */
uint64_t mk_gpu_place(uint64_t *end, uint64_t bytes);
/* dealt.c. Whether the buffer has tiles on each of several ranks, and no place as a whole. */
bool mk_gpu_is_dealt(const mk_gpu *gpu, size_t buffer);
/* Finds the rank's shares of all dealt buffers, yet without addresses. */
mk_status mk_gpu_find_shares(mk_gpu *gpu);
/* Bytes of all of them of one buffer. */
uint64_t mk_gpu_share_bytes(const mk_gpu *gpu, size_t buffer);
/* Where tile 0 of a weight would lie, and KV head 0 of a cache, by the share's address. */
mk_cu_address mk_gpu_share_base(const mk_gpu_share *share);
/* The share in which the tiles of an operand of one of the rank's queues are. */
const mk_gpu_share *mk_gpu_share_of(const mk_gpu *gpu, const mk_operand *operand);
/* Gives the shares of a buffer the addresses of the lender's. */
mk_status mk_gpu_borrow_shares(mk_gpu *gpu, size_t buffer, size_t lent);
/* Calls fn for each run of bytes [offset, offset + bytes) of a buffer that this rank has: it has `bytes` bytes from
 * byte `from` on at address `at`. */
typedef mk_status mk_gpu_run_fn(void *user, mk_cu_address at, uint64_t from, uint64_t bytes);
mk_status mk_gpu_each_run(const mk_gpu *gpu, size_t buffer, uint64_t offset, uint64_t bytes, mk_gpu_run_fn *fn,
                          void *user);
/* peers.c. Before anything is opened: whether there are GPUs for all ranks that reach each other's memory. */
mk_status mk_gpu_check_peers(const mk_program *program, const mk_gpu_options *options);
/* The GPU of a rank. */
uint32_t mk_gpu_device_of(const mk_gpu_options *options, uint32_t rank);
/* machine.c. Whether the buffer has those bytes; enters the machine. */
mk_status mk_gpu_check_range(const mk_gpu *gpu, size_t buffer, uint64_t offset, uint64_t bytes);
/* Makes the open machines of all ranks known to each other. */
mk_status mk_gpu_connect(mk_gpu *gpu);
/* windows.c, in a group. Makes the memory that other ranks write; makes it known to all ranks, which come here
 * together; frees it. */
mk_status mk_window_allocate(mk_gpu *gpu, uint64_t bytes, mk_cu_address *out);
mk_status mk_window_connect(mk_gpu *gpu);
void mk_window_free(mk_gpu *gpu);
/* run.c: the parts of a launch, on the ranks of this process; `prepare` may fail without harm. */
mk_status mk_gpu_prepare(mk_gpu *gpu, const mk_step_row *plan, uint32_t steps, const mk_gpu_ranks *ranks);
mk_status mk_gpu_begin(mk_gpu *gpu);
mk_status mk_gpu_look(mk_gpu *gpu); /* after mk_gpu_begin: whether something failed */
mk_status mk_gpu_end(mk_gpu *gpu);
/* Ends the launch under way, after its group broke, and waits for that. */
void mk_gpu_abandon(mk_gpu *gpu);
/* Puts "rank N, cuda:D" in front of the message of a failure, where there are several. */
mk_status mk_gpu_of_rank(const mk_gpu *gpu, mk_status status);
/* Values of several rows lie in the order of fragments, in whole steps of sixteen elements with room for sixteen lines,
 * and no stamps beside the words (vm/gpu/rows.cuh). */
bool mk_gpu_in_fragments(const mk_program *program, const mk_buffer *b);
/* Queues what makes a buffer as it is before the first step. */
mk_status mk_gpu_clear_buffer(const mk_gpu *gpu, size_t buffer);
/* Reads such a value row by row, as the program has it. */
mk_status mk_gpu_read_lines(mk_gpu *gpu, size_t buffer, uint64_t *to);
/* Loads a part of the device image and finds its kernel, with `shared` bytes of dynamic shared memory allowed. */
mk_status mk_gpu_load(const mk_gpu *gpu, int part, const char *name, uint32_t shared, mk_cu_module_ref *module,
                      mk_cu_function_ref *function);

#endif
