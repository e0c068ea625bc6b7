/* ckpt_impl.h -- what the files of this room share. Not for other rooms.
 *
 *   object   a safetensors file, named by its hash; read in blocks of 1 MiB, each with a CRC32C
 *   row      one logical tensor in a manifest: name, kind, dtype, shape
 *   box      a part of a row's tensor: offset and shape, and where it lies (object, key)
 *   part     a box in the memory of a writer; several writers may save parts of one tensor
 *   slab     a piece of a part that goes into one object
 *   report   the rows and objects of one writer, for the process that commits
 *
 *       row w [8, 4]  =  box [0,0]+[4,4] in object 5a.. key w   (written by rank 0)
 *                     +  box [4,0]+[4,4] in object 77.. key w   (written by rank 1)
 *
 * What proves what: a manifest's hash finds damage, its signature finds forgery. An object is proved
 * by its name where all of it is read, and block by block by the manifest's checksums where not. From
 * low to high the files are sign, manifest; temp, object, object_write, fetch; store; pack, load, prune,
 * copy, diff; save. */
#pragma once
#include "base/arena.h"
#include "base/hash.h"
#include "checkpoint/ckpt.h"
#include "net/digest.h"
#include "net/secret.h"
#include <pthread.h>

enum { LS_CKPT_BLOCK = 1 << 20 };  /* bytes covered by one CRC32C */
#define LS_CKPT_SLAB (64 * LS_MIB) /* a tensor longer than this is cut along dimension 0 */
#define LS_CKPT_MANIFEST_LIMIT (256 * LS_MIB)
#define LS_CKPT_MOST_STEP INT64_C(9999999999)

typedef struct ls_ckpt_object {
    ls_hash hash; /* of the whole file; its name */
    int64_t bytes;
    uint32_t *crcs; /* one per block */
    uint8_t sha[LS_DIGEST_BYTES];
    bool has_sha; /* its SHA-256 is known */
    bool by_sha;  /* the manifest is signed: no byte of it is used before that was compared */
} ls_ckpt_object;

/* A part of a tensor: where it lies in the tensor, and under which key in which object. */
typedef struct ls_ckpt_box {
    int object; /* index */
    const char *key;
    int64_t offset[LS_CKPT_RANK], shape[LS_CKPT_RANK];
} ls_ckpt_box;

typedef struct ls_ckpt_row {
    const char *name, *kind;
    ls_dtype type;
    int ndim;
    int64_t shape[LS_CKPT_RANK];
    ls_ckpt_box *boxes; /* cover the tensor exactly once */
    int n_boxes;
} ls_ckpt_row;

/* A manifest in memory. Everything hangs from the arena. */
struct ls_ckpt {
    ls_arena arena;
    const char *dir, *path;
    const char *mirror; /* another store that may have its objects; NULL: none */
    ls_ckpt_info info;
    ls_hash hash; /* its own */
    bool has_previous;
    ls_hash previous;
    ls_ckpt_row *rows; /* sorted by name, then kind */
    int n_rows;
    ls_ckpt_object *objects; /* sorted by hash */
    int n_objects;
};

/* What signs manifests (ckpt_sign.c). */
typedef struct ls_ckpt_key {
    ls_secret secret;
    char *path; /* owned; for messages */
    bool accept_unsigned;
} ls_ckpt_key;

struct ls_ckpt_store {
    char *dir;              /* owned, without a final slash */
    char *mirror;           /* owned: a second store; NULL: none */
    ls_ckpt_key *key;       /* owned; NULL: nothing is signed, and no signature checked */
    int lock_fd;            /* -1: not held */
    pthread_mutex_t saving; /* held during save and prune; tried, never waited for */
    pthread_mutex_t guard;  /* of the set below */
    ls_hash *good;          /* objects of the last save or load, known to be whole; sorted, owned */
    int n_good;
    bool named_temps;     /* the file system has no unnamed temporary files; set under saving */
    ls_ckpt *loaded;      /* of the last load_newest; owned */
    ls_ckpt_read read;    /* by it */
    ls_ckpt_token *token; /* NULL: the claim alone decides */
    void *token_context;
};

/* --- ckpt_manifest.c --- */

static inline int64_t ls_ckpt_blocks(int64_t bytes)
{
    return bytes / LS_CKPT_BLOCK + (bytes % LS_CKPT_BLOCK != 0);
}

/* Orders for qsort() and bsearch(): by hash, of elements that begin with one (ls_hash,
 * ls_ckpt_object); by name, then kind. */
int ls_ckpt_hash_order(const void *a, const void *b);
int ls_ckpt_name_order(const char *name, const char *kind, const char *name2, const char *kind2);
int ls_ckpt_row_order(const void *a, const void *b);

/* Room for one more element in an array of which n are used; LS_ENOMEM: it is as it was. */
ls_status ls_ckpt_grow(void **array, int n, int *cap, size_t size);

/* Sort, each content once; returns how many are left. */
int ls_ckpt_objects_sort(ls_ckpt_object *objects, int n);
int ls_ckpt_object_index(const ls_ckpt *ckpt, ls_hash hash); /* -1: it has none such */
/* Its boxes cover the tensor exactly once (and are sorted now). LS_EDATA: they do not. */
ls_status ls_ckpt_row_check(ls_ckpt_row *row);

/* Append the rows of tensors and objects. */
void ls_ckpt_manifest_tables(const ls_ckpt *ckpt, ls_str *out);
/* Append everything of the manifest that depends on what is saved, not on when. */
void ls_ckpt_manifest_body(const ls_ckpt *ckpt, ls_str *out);
/* Append the rest: time, new bytes, previous, the signature where there is a key, and the hash of
 * all text before it. */
ls_status ls_ckpt_manifest_tail(const ls_ckpt *ckpt, const ls_ckpt_key *key, ls_str *out);
/* Does this manifest text have that body? */
bool ls_ckpt_manifest_same(const char *text, size_t len, const ls_str *body);

/* Does the text end in its own hash? LS_EDATA: no. hash_out may be NULL. */
ls_status ls_ckpt_manifest_check(const char *text, size_t len, ls_hash *hash_out);

/* Parse a manifest; every index, offset and length of the result is in range and boxes cover their
 * tensors exactly once. The hash is not checked here. Fills the ckpt that the caller zeroed. */
ls_status ls_ckpt_manifest_parse(ls_ckpt *ckpt, const char *text, size_t len);

/* How a manifest ends. */
#define LS_CKPT_HASH_START "  \"hash\": \""
#define LS_CKPT_HASH_END "\"\n}\n"
enum {
    LS_CKPT_HASH_LINE =
        sizeof LS_CKPT_HASH_START - 1 + LS_HASH_HEX - 1 + sizeof LS_CKPT_HASH_END - 1
};

/* --- ckpt_sign.c --- */

void ls_ckpt_key_free(ls_ckpt_key *key); /* NULL is allowed */
/* Append the line with the signature of all text before it. */
ls_status ls_ckpt_sign(const ls_ckpt_key *key, ls_str *text);
/* Whether this text, which ends in its hash, may be used. LS_EDATA: no, by this key. key NULL:
 * yes. */
ls_status ls_ckpt_check_trust(const ls_ckpt_key *key, const char *text, size_t len,
                              ls_ckpt_trust *trust_out);
/* From now on objects are read by their SHA-256. LS_EDATA: one has none. */
ls_status ls_ckpt_bind_objects(const ls_ckpt *ckpt);
/* Whole, but not signed with the key of this store. */
bool ls_ckpt_is_foreign(const ls_ckpt_store *store, int64_t step);

/* --- ckpt_pack.c --- */

/* What a writer adds to a manifest: rows whose boxes need not cover their tensors, and objects. */
typedef struct ls_ckpt_added {
    ls_ckpt ckpt; /* rows, objects and arena only; names are borrowed from the parts */
    ls_ckpt_saved saved;
} ls_ckpt_added;

/* More work for the thread that hashes, after hashing. */
typedef struct ls_ckpt_aside {
    void (*run)(void *context); /* NULL: nothing */
    void *context;
} ls_ckpt_aside;

/* Plan, hash and write parts; the caller holds `saving`. store NULL: nothing is written. To be
 * released even after a failure. */
ls_status ls_ckpt_add_parts(ls_ckpt_store *store, const ls_ckpt_writing *how,
                            const ls_ckpt_part *parts, int n, const ls_ckpt_aside *aside,
                            ls_ckpt_added *added_out);
void ls_ckpt_added_release(ls_ckpt_added *added);
/* A tensor that can be saved; bytes of a part of this shape. */
ls_status ls_ckpt_tensor_check(const ls_ckpt_tensor *tensor, const int64_t *shape,
                               int64_t *bytes_out);
/* From the text of ls_ckpt_write_parts(), checked like a manifest but for the cover
 * (ckpt_manifest.c). */
ls_status ls_ckpt_report_parse(ls_ckpt_added *added, const char *text, size_t len);

/* --- ckpt_load.c --- */

/* Whole tensors as parts, owned by the caller; NULL: LS_ENOMEM. */
ls_ckpt_part *ls_ckpt_whole_parts(const ls_ckpt_tensor *tensors, int n);

/* --- ckpt_object.c --- */

/* Path of an object, appended. */
void ls_ckpt_object_path(const char *dir, ls_hash hash, ls_str *path_out);

/* Network file systems show names late and let handles go stale: the longest wait for that. Longer
 * than NFS caches a folder, which is 60 s. */
enum { LS_CKPT_SEEN_S = 70 };

/* open() for reading, stat() and whole reads, repeated while the answer is a stale handle. */
struct stat;
int ls_ckpt_open_file(const char *path, int flags);
int ls_ckpt_stat_file(const char *path, struct stat *info_out);
bool ls_ckpt_file_exists(const char *path);
ls_status ls_ckpt_read_file(const char *path, int64_t limit_bytes, ls_str *text_out);

/* An object being read: blocks come in on demand, each checked against its CRC. */
typedef struct ls_ckpt_reader {
    int fd;
    ls_str path;
    const ls_ckpt_object *object; /* borrowed */
    unsigned char *bytes;         /* owned, object->bytes long; valid where loaded */
    bool *loaded;                 /* per block; owned */
    int64_t bytes_read;           /* by ls_ckpt_reader_need() */
    bool proved;                  /* all bytes are there and have the SHA-256 that they must */
} ls_ckpt_reader;

/* memory: of at least the object's length, given away on success; NULL: it is allocated.
 * LS_EDATA: missing or of another size. */
ls_status ls_ckpt_reader_open(ls_ckpt_reader *reader, const char *dir, const ls_ckpt_object *object,
                              void *memory);
/* Bring bytes begin..end-1 into memory, verified; all bytes where the object must be proved by its
 * SHA-256. LS_EDATA: a block is damaged. */
ls_status ls_ckpt_reader_need(ls_ckpt_reader *reader, int64_t begin, int64_t end);
/* The same for all bytes, and compare their hash with the object's name. */
ls_status ls_ckpt_reader_all(ls_ckpt_reader *reader);
/* All bytes are in memory and have this SHA-256: compare it with the listed one. */
ls_status ls_ckpt_reader_prove(ls_ckpt_reader *reader, const uint8_t sha[LS_DIGEST_BYTES]);
/* The checksums of blocks first..end-1, which are in memory. */
ls_status ls_ckpt_reader_check(const ls_ckpt_reader *reader, int64_t first, int64_t end);
void ls_ckpt_reader_close(ls_ckpt_reader *reader);

/* Read a whole object and compare. LS_EIO: cannot be read. LS_EDATA: damaged, or not there. */
ls_status ls_ckpt_object_verify(const char *dir, const ls_ckpt_object *object);

/* --- ckpt_fetch.c --- */

/* Whole objects of a checkpoint, read ahead and verified, in the order given. strict: blocks and
 * hash are compared, not the hash alone. objects is borrowed until close. */
typedef struct ls_ckpt_fetch ls_ckpt_fetch;
ls_status ls_ckpt_fetch_open(ls_ckpt_fetch **fetch_out, const ls_ckpt *ckpt, const int *objects,
                             int n, bool strict);
/* The next one, borrowed until the next call. LS_EDATA, LS_EIO: it is damaged; the call after this
 * one goes on behind it. */
ls_status ls_ckpt_fetch_next(ls_ckpt_fetch *fetch, ls_ckpt_reader **reader_out);
int64_t ls_ckpt_fetch_bytes(const ls_ckpt_fetch *fetch); /* read so far */
void ls_ckpt_fetch_close(ls_ckpt_fetch *fetch);          /* NULL is allowed */

/* --- ckpt_object_write.c --- */

/* Pieces of memory that make up an object file. */
typedef struct ls_ckpt_piece {
    const void *bytes;
    int64_t len;
    bool spilled; /* as in ls_ckpt_tensor */
} ls_ckpt_piece;

/* Write an object into the store, durable except for the names of its folders: unnamed temporary
 * file, reserve, write, fdatasync, link. replace: a damaged file of this name exists. */
ls_status ls_ckpt_object_write(ls_ckpt_store *store, const ls_ckpt_object *object,
                               const ls_ckpt_piece *pieces, int n, bool replace);

/* Several objects at once. */
typedef struct ls_ckpt_flow ls_ckpt_flow;
ls_status ls_ckpt_flow_open(ls_ckpt_flow **flow_out, ls_ckpt_store *store);
/* Start writing an object; waits only while too much is under way. Object and pieces are borrowed
 * until close. A failure may belong to an earlier object. */
ls_status ls_ckpt_flow_put(ls_ckpt_flow *flow, const ls_ckpt_object *object,
                           const ls_ckpt_piece *pieces, int n, bool replace);
/* All of them are synced and have their names. */
ls_status ls_ckpt_flow_end(ls_ckpt_flow *flow);
/* Drops what has not ended. NULL is allowed. */
void ls_ckpt_flow_close(ls_ckpt_flow *flow);

/* --- ckpt_temp.c --- */

/* A temporary file; "" for a name where it has none. */
typedef struct ls_ckpt_temp {
    int fd;
    ls_str name;
} ls_ckpt_temp;

/* In a folder, with a name or, where the file system can do that, without. To be closed even after
 * a failure; closing removes it, unless its name was cleared. */
ls_status ls_ckpt_temp_open(ls_ckpt_temp *temp, const char *folder, bool named);
void ls_ckpt_temp_close(ls_ckpt_temp *temp);
/* Room for this many bytes, where the file system can promise it. path: for the message. */
ls_status ls_ckpt_reserve(int fd, int64_t bytes, const char *path);

/* Sync a folder; a handle that has gone stale is opened anew. */
ls_status ls_ckpt_sync_folder(const char *path);

/* Sync the folders of objects that were written: by the first two digits of their names. */
ls_status ls_ckpt_objects_sync(const char *dir, const bool touched[256]);

/* Write text to a named temporary file in the store and rename it to its manifest name. replace:
 * an existing manifest of this name goes away. */
ls_status ls_ckpt_manifest_commit(ls_ckpt_store *store, const char *path, const ls_str *text,
                                  bool replace);

/* Remove a temporary file (its name begins with LS_CKPT_TEMP) unless a living writer holds it. */
#define LS_CKPT_TEMP ".tmp-"
void ls_ckpt_temp_sweep(const char *path);

/* --- ckpt_copy.c --- */

/* An object could not be used, for the reason in this thread's record: replace it by a whole one
 * from the mirror, and log that. The record stays. */
bool ls_ckpt_heal(const ls_ckpt *ckpt, int object);

/* --- ckpt_store.c --- */

ls_status ls_ckpt_store_hold(ls_ckpt_store *store); /* take the lock file */
/* Objects that this process has written or read whole need not be read again to be reused. Only the
 * last save or load is remembered; forgetting (even when memory is short) only costs time. Those of
 * ckpt where keep is NULL or true. */
void ls_ckpt_store_remember(ls_ckpt_store *store, const ls_ckpt *ckpt, const bool *keep);
void ls_ckpt_store_forget(ls_ckpt_store *store);
bool ls_ckpt_store_is_good(ls_ckpt_store *store, ls_hash hash);
void ls_ckpt_manifest_path(const char *dir, int64_t step, ls_str *path_out);
/* Read, check the hash, parse; any signature. LS_EIO: cannot be read. LS_EDATA: damaged. */
ls_status ls_ckpt_read_manifest(const char *dir, int64_t step, ls_ckpt **ckpt_out);
/* The same, but where the store has a key only if the manifest is signed with it: checked before
 * parsing. */
ls_status ls_ckpt_read_trusted(const ls_ckpt_store *store, int64_t step, ls_ckpt **ckpt_out);
/* The newest one below a step that can be read so; NULL: none. Damaged ones are passed over. */
ls_status ls_ckpt_read_newest(const ls_ckpt_store *store, int64_t below, ls_ckpt **ckpt_out);
/* All objects are there with the right size, restored from the mirror where the manifest has one.
 * LS_EDATA: the first that is not. */
ls_status ls_ckpt_objects_there(const ls_ckpt *ckpt);
/* The newest usable checkpoint below a step. Damaged ones on the way are added to passed. */
typedef struct ls_ckpt_passed {
    ls_str reasons; /* '\0'-terminated, one per step */
    int64_t *steps; /* owned */
    int n;
} ls_ckpt_passed;
void ls_ckpt_passed_init(ls_ckpt_passed *passed);
void ls_ckpt_passed_release(ls_ckpt_passed *passed);
ls_status ls_ckpt_passed_add(ls_ckpt_passed *passed, int64_t step, const char *reason);
ls_status ls_ckpt_find_below(const ls_ckpt_store *store, int64_t below, ls_ckpt_passed *passed,
                             ls_ckpt **ckpt_out);
/* Log a warning about each, with the steps lost by going back to step `used`; used -1: none is
 * usable. */
ls_status ls_ckpt_passed_tell(const ls_ckpt_store *store, const ls_ckpt_passed *passed,
                              int64_t used, ls_str *notes);
/* Remove objects without a manifest and dead temporaries; the caller holds `saving`. */
ls_status ls_ckpt_sweep(ls_ckpt_store *store, int64_t *freed_out);
