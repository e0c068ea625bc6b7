/* ckpt.h -- checkpoints: a store of immutable objects, and one manifest for each saved step.
 *
 *   DIR/objects/<2 hex>/<32 hex>.safetensors   tensors; named by the XXH3-128 of the whole file
 *   DIR/step-<10 digits>.json                  manifest; written last, its rename commits
 *   DIR/lock                                   held by the job that writes: by its first rank
 *   DIR/generation                             number of the newest group of writers
 *
 * Whatever happens to a writer, every manifest that a reader finds was complete when it got its
 * name. The reader checks it again: its own hash, the sizes of its objects, and each block of 1 MiB
 * as it is read. A damaged checkpoint is never loaded; the previous one is, and the log says what
 * that costs. Objects that did not change are shared between checkpoints. Format:
 * docs/reference/checkpoint.md.
 *
 * Several threads may use a store; save and prune exclude each other (LS_EBUSY), and
 * ls_ckpt_load_newest() belongs to one thread. */
#pragma once
#include "base/dtype.h"
#include "base/str.h"

LS_C_BEGIN

enum { LS_CKPT_RANK = 4, LS_CKPT_PATH = 4096 };

/* In place of a step: the newest checkpoint that was the best one when it was saved. */
enum { LS_CKPT_BEST = -2 };

/* Memory that a save takes beside the tensors: objects of this many bytes and above pass through
 * buffers of this many in all; and to hash weights that others have written, this many of a tensor
 * are read back at a time, in blocks of a MiB. */
enum { LS_CKPT_DIRECT = 1 << 20, LS_CKPT_BUFFERS = 8 << 20, LS_CKPT_READ_BACK = 4 << 20 };

typedef struct ls_ckpt_store ls_ckpt_store;
typedef struct ls_ckpt ls_ckpt; /* one manifest, read and verified; read-only */

/* A logical tensor in host memory, row major. */
typedef struct ls_ckpt_tensor {
    const char *name; /* unique together with kind; valid UTF-8 */
    const char *kind; /* "param", "adam.m", "adam.v" ... */
    const char
        *group; /* small tensors of one group and kind share an object, except that frozen and
                        * other ones do not; NULL: "" */
    ls_dtype type;
    int ndim; /* 0 to LS_CKPT_RANK */
    int64_t shape[LS_CKPT_RANK];
    void *bytes;  /* read by save, written by load; may be NULL when the tensor is empty */
    bool spilled; /* bytes lie in a spill (base/spill.h) and are given back after use */
    bool frozen;  /* the same bytes in every save of a run: shares objects with such tensors only */
} ls_ckpt_tensor;

/* Whether its signature was checked (ls_ckpt_use_key). */
typedef enum ls_ckpt_trust {
    LS_CKPT_UNSIGNED,
    LS_CKPT_UNCHECKED, /* signed, but not checked: the store has no key */
    LS_CKPT_PROVED     /* signed with the key of the store that it was found in */
} ls_ckpt_trust;

/* What a manifest holds besides tensors. Strings may be NULL when saving (stored as ""). */
typedef struct ls_ckpt_info {
    int64_t step;         /* finished steps; 0 to 9,999,999,999 */
    int64_t cursor;       /* position in the data order */
    int64_t tokens;       /* seen so far */
    int64_t generation;   /* of the group of workers that wrote it; 0 for one process */
    uint64_t seed;        /* of the run */
    double loss;          /* last training loss; NaN: not known */
    double val_loss;      /* last validation loss; NaN: not known */
    const char *run_name; /* */
    const char *mesh;     /* the mesh, for people: "dp=1" */
    const char *config;   /* the resolved run file, any text */
    const char *extra;    /* the caller's own state, any text */
    const char
        *lineage; /* where the weights come from, for people: a line each; "": a fresh start */
    bool best;    /* it has the lowest validation loss so far; never pruned */
    char weights_hash[33]; /* of the logical parameters; computed by save when empty */
    /* Set by reading only. */
    int64_t time_s;      /* when it was saved, seconds since 1970 */
    int64_t total_bytes; /* of all its objects */
    int64_t new_bytes;   /* of those, written by this save */
    ls_ckpt_trust trust;
} ls_ckpt_info;

/* Open a store. With create: make the folder, and hold it for writing until close (LS_EBUSY when
 * another process does). Without: for reading; a save or prune takes the hold when it comes. */
ls_status ls_ckpt_open(ls_ckpt_store **store_out, const char *dir, bool create);
void ls_ckpt_close(ls_ckpt_store *store); /* NULL is allowed */
const char *ls_ckpt_dir(const ls_ckpt_store *store);

/* From now on sign what is saved, and accept only what is signed, with the key in this file: 32
 * bytes that only their owner may read (net/secret.h; LS_EUSAGE, LS_EDATA: they are not). Wrongly
 * signed checkpoints count as damaged, and so do unsigned ones unless accept_unsigned. Every byte
 * of a signed checkpoint is proved before it is used, so objects are read whole even where a part
 * is wanted. */
ls_status ls_ckpt_use_key(ls_ckpt_store *store, const char *path, bool accept_unsigned);

/* Which store, and which step of it, a path means: a store, a run folder with a store in
 * "checkpoints", a manifest file (then *step_out is its step, otherwise -1), or "best" in a store or
 * run folder (LS_CKPT_BEST). LS_EUSAGE: none. LS_EIO: it cannot be looked at. */
ls_status ls_ckpt_locate(const char *path, ls_str *dir_out, int64_t *step_out);

/* --- saving ------------------------------------------------------------------------------------
 */

typedef struct ls_ckpt_saved {
    int64_t bytes_written; /* objects that were new */
    int64_t bytes_reused;  /* objects that the store had */
    int objects_written, objects_reused;
    int writers;        /* writers of the checkpoint */
    int64_t most_bytes; /* the largest share: written and reused by one of them */
    double seconds;
    char path[LS_CKPT_PATH]; /* of the manifest */
} ls_ckpt_saved;

/* Write a checkpoint of n tensors. When it returns LS_OK the checkpoint survives a power cut; when
 * it fails, or the process dies in it, all earlier checkpoints are as they were. An existing
 * checkpoint of the same step is replaced, unless its content is the same. Damaged objects in the
 * store are written anew. LS_EIO: no space (found before anything is written, where the system
 * reports it), or the system refused. LS_EBUSY: another save or prune is under way. saved_out may be
 * NULL. */
ls_status ls_ckpt_save(ls_ckpt_store *store, const ls_ckpt_info *info,
                       const ls_ckpt_tensor *tensors, int n, ls_ckpt_saved *saved_out);

/* Hash of the tensors of kind "param" in name order: name, dtype, shape, bytes. Independent of the
 * order given, of groups, objects and sharding. */
ls_status ls_ckpt_weights_hash(const ls_ckpt_tensor *tensors, int n, char hex_out[33]);

/* --- saving by several processes -----------------------------------------------------------------
 *
 * Each writes the objects of its parts of the tensors into the same folder, which all of them see;
 * the one that holds the store commits, with the reports of all. Until then nothing has changed for
 * readers. Only the holder sweeps and prunes, and not while others write. */

/* A part of a logical tensor. */
typedef struct ls_ckpt_part {
    ls_ckpt_tensor of; /* the whole; its bytes are those of the part alone, row major */
    int64_t offset[LS_CKPT_RANK], shape[LS_CKPT_RANK];
    int64_t pitch; /* of 2 dimensions: elements between rows in memory; 0: adjacent */
} ls_ckpt_part;

/* Split elements first .. first+count-1 of a tensor, in row-major order, into parts; tensor->bytes
 * points at the first of them. Returns the number of parts: whole rows are one part, the rest of a
 * row at either end another. */
enum { LS_CKPT_PARTS = 2 * LS_CKPT_RANK - 1 };
int ls_ckpt_cut(const ls_ckpt_tensor *tensor, int64_t first, int64_t count,
                ls_ckpt_part parts_out[LS_CKPT_PARTS]);

typedef struct ls_ckpt_writing {
    int64_t step;           /* for messages */
    int writers;            /* writers of about as much at the same time: space is needed for all */
    int64_t manifest_bytes; /* text beside the tables of tensors and objects, about */
} ls_ckpt_writing;

/* Write the objects of n parts. When it returns LS_OK they are durable, and report_out (text) lists
 * them for the process that commits. store NULL: nothing is written, only hashed, to compare
 * replicas. The store need not be held. Errors as of ls_ckpt_save(). */
ls_status ls_ckpt_write_parts(ls_ckpt_store *store, const ls_ckpt_writing *how,
                              const ls_ckpt_part *parts, int n, ls_str *report_out);

typedef struct ls_ckpt_report {
    const char *text;
    size_t len;
    int writer;     /* its rank, for messages */
    bool seen_only; /* it only hashed what another writer wrote; these come last */
} ls_ckpt_report;

/* Commit what the reports list. Their parts must cover every tensor exactly once, and their objects
 * must be visible here before the deadline: LS_EDATA says what is missing. LS_ENUMERIC: two writers
 * have different bits of the same tensor. The hash of the weights is computed from what is stored,
 * unless info has it. */
ls_status ls_ckpt_commit(ls_ckpt_store *store, const ls_ckpt_info *info,
                         const ls_ckpt_report *reports, int n, int64_t deadline_ns,
                         ls_ckpt_saved *saved_out);

/* Become the newest group of writers: its number, for ls_ckpt_info.generation. A save of an older
 * group is refused from now on (LS_EBUSY), whatever lock it holds. */
ls_status ls_ckpt_claim(ls_ckpt_store *store, int64_t *generation_out);
ls_status ls_ckpt_claimed(const ls_ckpt_store *store, int64_t *generation_out); /* 0: none */

/* If set, the saving thread calls it directly before each commit; anything but LS_OK stops the
 * commit: for a coordinator that knows of a newer generation. */
typedef ls_status ls_ckpt_token(void *context, const ls_ckpt_info *info);
void ls_ckpt_set_token(ls_ckpt_store *store, ls_ckpt_token *token, void *context);

/* Keep the newest checkpoints that verify (at least one), remove older ones, then objects that no
 * manifest names and temporary files of dead writers. Each file that goes is reported to `tell`.
 * dry: nothing is removed, and the store need not be held. *freed_out (may be NULL): bytes. */
typedef void (*ls_ckpt_removed)(const char *path, int64_t bytes, void *context);
typedef struct ls_ckpt_pruning {
    int64_t keep;              /* newest that verify */
    int64_t keep_every;        /* and all whose step is a multiple of this; 0: none */
    int64_t least;             /* never fewer than this many that verify; the best always stays */
    const ls_ckpt_store *like; /* what is pinned in that store stays here, too; NULL: none */
    bool dry;
    ls_ckpt_removed tell; /* may be NULL */
    void *context;
} ls_ckpt_pruning;
ls_status ls_ckpt_prune_by(ls_ckpt_store *store, const ls_ckpt_pruning *how, int64_t *freed_out);

/* A pinned checkpoint is never pruned. It must be there and look whole to be pinned; the store need
 * not be held. LS_EUSAGE: there is none of this step, or it was not pinned. */
ls_status ls_ckpt_pin(const ls_ckpt_store *store, int64_t step, bool pinned);
bool ls_ckpt_is_pinned(const ls_ckpt_store *store, int64_t step);

/* When less than `bytes` are free, remove leftovers: objects that no manifest names. No other
 * process may be writing. */
ls_status ls_ckpt_make_room(ls_ckpt_store *store, int64_t bytes);

/* --- finding and loading -----------------------------------------------------------------------
 */

/* The steps that have a manifest, sorted, verified or not. *steps_out is owned by the caller
 * (ls_mem_free). */
ls_status ls_ckpt_steps(const ls_ckpt_store *store, int64_t **steps_out, int *n_out);

/* Open the checkpoint of a step: its manifest's hash is right, and its objects exist with the right
 * size. LS_EUSAGE: there is none. LS_EDATA: damaged; the message says how. With step -1: the newest
 * that verifies; damaged ones are skipped, each with a line in notes, or a warning in the log where
 * notes is NULL. *ckpt_out is NULL when the store has no checkpoint at all; LS_EDATA when it has
 * some but none is usable. With LS_CKPT_BEST: the best of those that verify; LS_EUSAGE: none is. */
ls_status ls_ckpt_find(const ls_ckpt_store *store, int64_t step, ls_ckpt **ckpt_out, ls_str *notes);
void ls_ckpt_free(ls_ckpt *ckpt); /* NULL is allowed */

/* The checkpoint of a step that another process has seen, perhaps on another host: waits until the
 * deadline for manifest and objects that are not visible here yet. */
ls_status ls_ckpt_await(const ls_ckpt_store *store, int64_t step, int64_t deadline_ns,
                        ls_ckpt **ckpt_out);

const ls_ckpt_info *ls_ckpt_about(const ls_ckpt *ckpt); /* strings borrowed until free */
const char *ls_ckpt_path(const ls_ckpt *ckpt);          /* of the manifest */
int ls_ckpt_count(const ls_ckpt *ckpt);                 /* logical tensors */
/* Tensor i in order of name and kind; bytes and group are NULL, the name is borrowed until free. */
ls_ckpt_tensor ls_ckpt_nth(const ls_ckpt *ckpt, int i);

/* Each manifest holds the hash of the newest manifest before it: *step_out is its step; -1: there
 * was none; -2: it is gone: removed, damaged or replaced since. */
ls_status ls_ckpt_follows(const ls_ckpt_store *store, const ls_ckpt *ckpt, int64_t *step_out);

/* Fill the tensors from the checkpoint, which may hold more than is asked for. Objects are read
 * ahead, and verified before a byte of them is used. LS_EDATA: a tensor is missing or has another
 * shape or dtype (nothing is written then), or an object is damaged (tensors may be partly
 * written). */
ls_status ls_ckpt_load(const ls_ckpt *ckpt, ls_ckpt_tensor *tensors, int n);

/* The same for parts of tensors: the part at offset with shape goes to of.bytes, by its pitch. Of
 * an object that is wanted whole, every byte is read; of others only the header and the blocks that
 * hold some of the parts. read_out may be NULL. */
typedef struct ls_ckpt_read {
    int64_t bytes; /* of objects */
    int objects_whole, objects_part;
    double seconds;
} ls_ckpt_read;
ls_status ls_ckpt_load_parts(const ls_ckpt *ckpt, const ls_ckpt_part *parts, int n,
                             ls_ckpt_read *read_out);

/* Part of one tensor: the box at offset with shape, row major, into dst. Only the blocks that hold
 * it are read and verified. */
ls_status ls_ckpt_read_box(const ls_ckpt *ckpt, const char *name, const char *kind,
                           const int64_t *offset, const int64_t *shape, void *dst);

/* Load the newest checkpoint that can be loaded: like find and load, but a checkpoint whose objects
 * turn out to be damaged is skipped too. *found_out is false when the store is empty. Strings in
 * info_out are borrowed until the next call or until the store is closed. */
ls_status ls_ckpt_load_newest(ls_ckpt_store *store, ls_ckpt_tensor *tensors, int n,
                              ls_ckpt_info *info_out, bool *found_out);

/* What the last load read. */
ls_ckpt_read ls_ckpt_last_read(const ls_ckpt_store *store);

/* The same for callers that load in their own way: candidates from the newest to the oldest. next
 * gives NULL when the store is empty, and LS_EDATA when nothing is left to try; reject gives the
 * reason why the last one is not used; take logs warnings about what was skipped, and keeps the
 * current candidate: strings of info_out are borrowed until the store is closed. */
typedef struct ls_ckpt_search ls_ckpt_search;
ls_status ls_ckpt_search_open(ls_ckpt_search **search_out, ls_ckpt_store *store);
ls_status ls_ckpt_search_next(ls_ckpt_search *search, const ls_ckpt **ckpt_out);
ls_status ls_ckpt_search_reject(ls_ckpt_search *search, const char *reason);
ls_status ls_ckpt_search_take(ls_ckpt_search *search, ls_ckpt_info *info_out);
void ls_ckpt_search_close(ls_ckpt_search *search); /* NULL is allowed */

/* Read every block of every object. Each damaged object is reported once: its file, what is wrong,
 * and the tensors in it ("a, b and 3 more"). *damaged_out: how many. LS_OK even when objects are
 * damaged; LS_ENOMEM. */
typedef void (*ls_ckpt_damage)(const char *object_path, const char *reason, const char *tensors,
                               void *context);
ls_status ls_ckpt_verify(const ls_ckpt *ckpt, ls_ckpt_damage tell, void *context, int *damaged_out);

/* --- two stores ----------------------------------------------------------------------------------
 */

typedef struct ls_ckpt_copied {
    int objects_copied, objects_there; /* present ones that were read and are whole */
    int objects_healed;                /* of the copied ones, those that were there but damaged */
    int64_t bytes_copied, bytes_there;
} ls_ckpt_copied;

/* Copy a checkpoint to another store: missing and damaged objects, each verified while it is read,
 * then the manifest. LS_EDATA: the source is damaged; nothing was committed. */
ls_status ls_ckpt_copy(const ls_ckpt *ckpt, ls_ckpt_store *to, ls_ckpt_copied *copied_out);

/* Another store that may hold the same objects: an object that is damaged or missing when it is
 * needed is replaced by the one of the mirror, with a warning. NULL: none. */
ls_status ls_ckpt_set_mirror(ls_ckpt_store *store, const char *dir);

/* What differs between two checkpoints, tensor by tensor in order of name and kind. */
typedef struct ls_ckpt_change {
    const char *name, *kind;
    enum {
        LS_CKPT_SAME,
        LS_CKPT_CHANGED,
        LS_CKPT_SHAPED, /* another shape or type */
        LS_CKPT_FIRST_ONLY,
        LS_CKPT_SECOND_ONLY
    } how;
    int64_t elements, differ; /* how many, and of them with other bits */
    double most;              /* largest difference; infinity where one is not a number */
} ls_ckpt_change;
typedef void (*ls_ckpt_differ)(const ls_ckpt_change *change, void *context);

typedef struct ls_ckpt_diffs {
    int same, different;  /* tensors */
    int64_t shared_bytes; /* of objects that both have */
} ls_ckpt_diffs;
ls_status ls_ckpt_diff(const ls_ckpt *a, const ls_ckpt *b, ls_ckpt_differ tell, void *context,
                       ls_ckpt_diffs *diffs_out);

LS_C_END
