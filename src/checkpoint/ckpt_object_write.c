/* ckpt_object_write.c -- writes objects to the disk so that they are whole or absent.
 *
 * An object, in this order:
 *
 *   temporary file without a name   a killed writer leaves nothing; where the file system has none,
 *                                   a named one that carries a lock, so that a later sweep can tell
 *                                   a dead writer's file from a living one's
 *   fallocate                       a full disk is found before the first byte
 *   write, fdatasync                the content is on disk ...
 *   link                            ... before the name is; never over an existing name
 *
 * The caller syncs the folders once for all objects. When fdatasync fails, the kernel may have
 * dropped the dirty pages, and a second call may report success: so the file is thrown away and
 * written anew, once. A stale handle (ESTALE, of a network file system) is treated the same way.
 *
 * Several objects are written at once, so that the disk has work while this thread fills the next
 * buffer, and while it waits for a sync:
 *
 *   UNUSED --put--> WRITING --all written--> SYNCING --synced--> linked: UNUSED
 *                      ^--------- AGAIN: the file is thrown away --------'
 *
 * feed() moves bytes into requests, take() handles the end of a request; advance() takes the
 * arrows. */
#include "checkpoint/ckpt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/disk.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/spill.h"

/* The outcome of one attempt to write a file. */
typedef enum outcome { DONE, AGAIN, FAILED } outcome;

/* Give the written file its name. AGAIN: this way does not work here, named files may. */
static outcome link_object(ls_ckpt_store *store, ls_ckpt_temp *t, const char *path, bool replace)
{
    char self[64];
    int rc;

    if (LS_FAULT("ckpt.object.link")) {
        errno = EIO;
        rc = -1;
    } else if (t->name.len) {
        bool moved = replace;
        rc = replace ? rename(t->name.p, path) : link(t->name.p, path);
        if (rc != 0 && !replace && (errno == EPERM || errno == EOPNOTSUPP)) {
            moved = true;
            rc = rename(t->name.p, path); /* no hard links here; the content is the same anyway */
        }
        if (rc == 0 && moved)
            ls_str_clear(&t->name); /* nothing left to unlink */
    } else {
        snprintf(self, sizeof self, "/proc/self/fd/%d", t->fd);
        rc = linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
        if (rc != 0 &&
            (errno == ENOENT || errno == EXDEV || errno == EOPNOTSUPP || errno == EPERM)) {
            store->named_temps = true;
            ls_fail_sys(LS_EIO, "cannot name object \"%s\"", path);
            return AGAIN;
        }
    }
    if (rc == 0 || errno == EEXIST) /* the same content came from somewhere else */
        return DONE;
    ls_fail_sys(LS_EIO, "cannot name object \"%s\"", path);
    return FAILED;
}

/* --- several objects at once --------------------------------------------------------------------
 */

/* A large object bypasses the page cache, where the file system can do that (O_DIRECT): it is not
 * read again soon, its sync need not wait for other writers, and the copy into the cache is saved.
 * Direct writes need aligned blocks, in memory and in the file: bytes are gathered in buffers, the
 * last one is filled up with zeros, and the file is cut to its length at the end. */
enum {
    ALIGN = 4096,
    CHUNKS = 8,                       /* requests at once */
    CHUNK = LS_CKPT_BUFFERS / CHUNKS, /* bytes of each */
    WRITES = 4,                       /* objects at once */
    TRIES = 2,
    STALE_TRIES = 5
};

typedef enum stage { UNUSED, WRITING, SYNCING } stage;

/* An object that is being written. */
typedef struct object_write {
    stage stage;
    const ls_ckpt_object *object;
    const ls_ckpt_piece *pieces;
    int n;
    bool replace, direct;
    ls_str path;
    ls_ckpt_temp temp;
    int piece;         /* from here on, bytes have not been taken yet: */
    int64_t in_piece;  /* in that piece */
    int64_t given;     /* bytes of the file that are in requests */
    int requests;      /* under way */
    int tries, trying; /* of the whole; the most */
    bool again;        /* to be written anew, once no request is under way */
} object_write;

/* A request. */
typedef struct chunk {
    object_write *of; /* NULL: free */
    void *memory;     /* owned; for direct ones */
    char *buffer;     /* CHUNK bytes in it, aligned */
    char *bytes;      /* what is written: the buffer, or the object's own memory */
    int64_t len, at;
} chunk;

struct ls_ckpt_flow {
    ls_ckpt_store *store; /* borrowed */
    ls_disk *disk;
    object_write writes[WRITES];
    chunk chunks[CHUNKS];
    ls_status status; /* the first failure, and its record */
    ls_err_record why;
};

static void fail_flow(ls_ckpt_flow *flow)
{
    if (flow->status != LS_OK)
        return;
    flow->why = *ls_err_last();
    flow->status = flow->why.code;
}

ls_status ls_ckpt_flow_open(ls_ckpt_flow **flow_out, ls_ckpt_store *store)
{
    ls_ckpt_flow *flow = ls_mem_alloc(sizeof *flow);
    ls_status st = LS_OK;

    if (!flow)
        return LS_ENOMEM;
    flow->store = store;
    for (int i = 0; i < WRITES; i++) {
        ls_str_init(&flow->writes[i].path);
        flow->writes[i].temp.fd = -1;
        ls_str_init(&flow->writes[i].temp.name);
    }
    LS_TRY(st, ls_disk_open(&flow->disk, CHUNKS + WRITES), out);
    *flow_out = flow;
out:
    if (st != LS_OK)
        ls_ckpt_flow_close(flow);
    return st;
}

void ls_ckpt_flow_close(ls_ckpt_flow *flow)
{
    if (!flow)
        return;
    ls_disk_close(flow->disk); /* waits: buffers and files are in use until then */
    for (int i = 0; i < WRITES; i++) {
        ls_ckpt_temp_close(&flow->writes[i].temp);
        ls_str_release(&flow->writes[i].path);
    }
    for (int i = 0; i < CHUNKS; i++)
        ls_mem_free(flow->chunks[i].memory);
    ls_mem_free(flow);
}

/* A temporary file with room for the object. */
static ls_status open_file(ls_ckpt_flow *flow, object_write *f)
{
    char folder[LS_CKPT_PATH];
    ls_status st = LS_OK;

    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(f->path.p, '/') - f->path.p), f->path.p);
    if (mkdir(folder, 0755) != 0 && errno != EEXIST)
        return ls_fail_sys(LS_EIO, "cannot create folder \"%s\"", folder);
    LS_TRY(st, ls_ckpt_temp_open(&f->temp, folder, f->replace || flow->store->named_temps), out);
    LS_TRY(st, ls_ckpt_reserve(f->temp.fd, ls_round_up(f->object->bytes, ALIGN), f->path.p), out);
    int flags = fcntl(f->temp.fd, F_GETFL);
    f->direct = f->object->bytes >= LS_CKPT_DIRECT && flags >= 0 &&
                fcntl(f->temp.fd, F_SETFL, flags | O_DIRECT) == 0;
out:
    return st;
}

/* From the beginning, into a new file. */
static void begin_write(ls_ckpt_flow *flow, object_write *f)
{
    ls_ckpt_temp_close(&f->temp);
    f->stage = WRITING;
    f->again = false;
    f->piece = 0;
    f->in_piece = f->given = 0;
    f->tries++;
    if (open_file(flow, f) != LS_OK)
        fail_flow(flow);
}

static void end_write(object_write *f)
{
    ls_ckpt_temp_close(&f->temp);
    ls_str_clear(&f->path);
    f->stage = UNUSED;
    for (int i = 0; i < f->n; i++)
        if (f->pieces[i].spilled)
            ls_spill_give_back(f->pieces[i].bytes, f->pieces[i].len);
}

/* The file could not be written or synced, for the reason in this thread's record and `error`. */
static void try_again(ls_ckpt_flow *flow, object_write *f, int error)
{
    if (error == ESTALE) {
        f->trying = STALE_TRIES;
        usleep(20 * 1000 << f->tries); /* the client's cache must expire first */
    }
    if (f->tries >= f->trying)
        fail_flow(flow);
    else
        f->again = true;
}

/* All bytes are written: cut the file to the length of the object, and ask for its sync. */
static void sync_object(ls_ckpt_flow *flow, object_write *f)
{
    f->stage = SYNCING;
    if (ftruncate(f->temp.fd, f->object->bytes) != 0) { /* what was reserved is longer */
        ls_fail_sys(LS_EIO, "cannot set the length of \"%s\"", f->path.p);
        try_again(flow, f, errno);
        return;
    }
    if (LS_FAULT("ckpt.object.sync") || ls_fault_at(LS_FAULT_AT_SAVE_SYNC)) {
        errno = EIO;
        ls_fail_sys(LS_EIO, "cannot sync object \"%s\"", f->path.p);
        try_again(flow, f, 0);
        return;
    }
    f->requests++;
    ls_disk_submit(flow->disk, &(ls_disk_request){.what = LS_DISK_SYNC,
                                                  .fd = f->temp.fd,
                                                  .tag = CHUNKS + (int)(f - flow->writes)});
}

/* The next state when no request of the object is under way. */
static void advance(ls_ckpt_flow *flow, object_write *f)
{
    if (flow->status != LS_OK || f->requests > 0)
        return;
    if (f->stage == WRITING && !f->again && f->given >= f->object->bytes)
        sync_object(flow, f);
    if (f->again)
        begin_write(flow, f);
}

/* The sync has ended well: give the file its name. */
static void name_object(ls_ckpt_flow *flow, object_write *f)
{
    outcome result = link_object(flow->store, &f->temp, f->path.p, f->replace);

    if (result == DONE)
        end_write(f);
    else if (result == AGAIN)
        try_again(flow, f, 0);
    else
        fail_flow(flow);
}

/* The rest of a request that was cut short, or refused for being direct. Without O_DIRECT from here on:
 * what is left need not be aligned any more. */
static ls_status write_rest(const chunk *c, int64_t done)
{
    int fd = c->of->temp.fd;

    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
    while (done < c->len) {
        ssize_t n = pwrite(fd, c->bytes + done, (size_t)(c->len - done), c->at + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return ls_fail_sys(LS_EIO, "cannot write \"%s\"", c->of->path.p);
        }
        done += n;
    }
    return LS_OK;
}

/* The end of a write. A short one is completed here; one that failed ends the object, or starts it
 * anew where the handle is stale. */
static void chunk_ended(ls_ckpt_flow *flow, chunk *c, const ls_disk_end *end)
{
    object_write *f = c->of;
    ls_status st = LS_OK;

    if (end->error && end->error != EINVAL) {
        errno = end->error;
        st = ls_fail_sys(LS_EIO, "cannot write \"%s\"", f->path.p);
    } else if (end->done < c->len) {
        st = write_rest(c, end->done);
    }
    int error = errno;
    c->of = NULL;
    f->requests--;
    if (st == LS_OK)
        return;
    if (error == ESTALE)
        try_again(flow, f, error);
    else
        fail_flow(flow);
}

/* Wait for the end of one request, and go on with its object. */
static void take(ls_ckpt_flow *flow)
{
    ls_disk_end end = ls_disk_take(flow->disk);
    object_write *f = end.tag < CHUNKS ? flow->chunks[end.tag].of : &flow->writes[end.tag - CHUNKS];

    if (end.tag < CHUNKS) {
        chunk_ended(flow, &flow->chunks[end.tag], &end);
    } else {
        f->requests--;
        if (end.error) {
            errno = end.error;
            ls_fail_sys(LS_EIO, "cannot sync object \"%s\"", f->path.p);
            try_again(flow, f, end.error);
        } else if (flow->status == LS_OK) {
            name_object(flow, f);
        }
    }
    if (f->stage != UNUSED)
        advance(flow, f);
}

static chunk *free_chunk(ls_ckpt_flow *flow)
{
    for (int i = 0; i < CHUNKS; i++)
        if (!flow->chunks[i].of)
            return &flow->chunks[i];
    return NULL;
}

static ls_status make_buffer(chunk *c)
{
    if (c->memory)
        return LS_OK;
    c->memory = ls_mem_alloc(CHUNK + ALIGN);
    if (!c->memory)
        return LS_ENOMEM;
    c->buffer = (char *)c->memory + (ALIGN - (uintptr_t)c->memory % ALIGN) % ALIGN;
    return LS_OK;
}

/* A piece starts: for tests and drills it may fail here, or (torn) after a part of it. Torn is what a
 * power cut leaves of a write: the first half of the piece at its place in the file. */
static bool piece_fails(object_write *f)
{
    if (f->in_piece > 0)
        return false;
    ls_fault_deed deed = ls_fault_at(LS_FAULT_AT_SAVE_WRITE);
    const ls_ckpt_piece *p = &f->pieces[f->piece];
    if (deed == LS_FAULT_TORN && pwrite(f->temp.fd, p->bytes, (size_t)p->len / 2, f->given) < 0)
        ls_log(LS_LOG_DEBUG, "nothing of \"%s\" was written", f->path.p);
    errno = LS_FAULT("ckpt.object.write") ? ENOSPC : ls_fault_errno(deed);
    if (errno == 0)
        return false;
    ls_fail_sys(LS_EIO, "cannot write \"%s\"", f->path.p);
    return true;
}

/* The next bytes of the object, at most `most`; NULL: an error, in the record. */
static const char *next_bytes(object_write *f, int64_t most, int64_t *len_out)
{
    while (f->in_piece == f->pieces[f->piece].len) { /* empty ones, too */
        if (f->in_piece == 0 && piece_fails(f))
            return NULL;
        if (f->direct && f->pieces[f->piece].spilled)
            ls_spill_give_back(f->pieces[f->piece].bytes, f->pieces[f->piece].len);
        f->piece++;
        f->in_piece = 0;
    }
    if (piece_fails(f))
        return NULL;
    const ls_ckpt_piece *p = &f->pieces[f->piece];
    const char *bytes = (const char *)p->bytes + f->in_piece;
    *len_out = ls_min_i64(most, p->len - f->in_piece);
    f->in_piece += *len_out;
    return bytes;
}

/* Fill a request with bytes of the object: gathered in its buffer, or in place. Example of a direct one,
 * with pieces of 100, 5000 and 2000 bytes, the last of the object:
 *
 *     buffer    | head 100 | a 5000 | b 2000 | 1092 zeros |       8192 bytes, two pages
 *
 * The zeros are cut off again by sync_object(). */
static ls_status fill_chunk(chunk *c, object_write *f)
{
    int64_t left = f->object->bytes - f->given, len;
    const char *bytes;
    ls_status st = LS_OK;

    c->at = f->given;
    if (!f->direct) {
        bytes = next_bytes(f, CHUNK, &c->len);
        c->bytes = (char *)(uintptr_t)bytes;
        f->given += bytes ? c->len : 0;
        return bytes ? LS_OK : ls_err_last()->code;
    }
    LS_TRY(st, make_buffer(c), out);
    c->bytes = c->buffer;
    for (c->len = 0; c->len < CHUNK && c->len < left; c->len += len) {
        bytes = next_bytes(f, ls_min_i64(CHUNK, left) - c->len, &len);
        LS_TRY(st, bytes ? LS_OK : ls_err_last()->code, out);
        memcpy(c->buffer + c->len, bytes, (size_t)len);
    }
    f->given += c->len;
    len = ls_round_up(c->len, ALIGN);
    memset(c->buffer + c->len, 0, (size_t)(len - c->len));
    c->len = len;
out:
    return st;
}

/* Turn all bytes of an object into requests. */
static void feed(ls_ckpt_flow *flow, object_write *f)
{
    while (flow->status == LS_OK && !f->again && f->given < f->object->bytes) {
        chunk *c = free_chunk(flow);
        if (!c) {
            take(flow);
            continue;
        }
        if (fill_chunk(c, f) != LS_OK) {
            fail_flow(flow);
            break;
        }
        c->of = f;
        f->requests++;
        ls_disk_submit(flow->disk, &(ls_disk_request){.what = LS_DISK_WRITE,
                                                      .fd = f->temp.fd,
                                                      .bytes = c->bytes,
                                                      .len = c->len,
                                                      .at = c->at,
                                                      .tag = (int)(c - flow->chunks)});
    }
    advance(flow, f);
}

/* The first object of which this is true: it is (not) in use; bytes of it are missing in its file
 * and not on their way. */
typedef enum condition { IS_UNUSED, IS_USED, IS_INCOMPLETE } condition;

static object_write *find_write(ls_ckpt_flow *flow, condition wanted)
{
    for (object_write *f = flow->writes; f < flow->writes + WRITES; f++) {
        bool incomplete = f->stage == WRITING && !f->again && f->given < f->object->bytes;
        if (wanted == IS_INCOMPLETE ? incomplete : (f->stage != UNUSED) == (wanted == IS_USED))
            return f;
    }
    return NULL;
}

/* Advance the objects under way by one event. */
static void push(ls_ckpt_flow *flow)
{
    object_write *f = find_write(flow, IS_INCOMPLETE); /* one that is written anew */

    if (f)
        feed(flow, f);
    else
        take(flow);
}

ls_status ls_ckpt_flow_put(ls_ckpt_flow *flow, const ls_ckpt_object *object,
                           const ls_ckpt_piece *pieces, int n, bool replace)
{
    object_write *f;

    while (!(f = find_write(flow, IS_UNUSED)) && flow->status == LS_OK)
        push(flow);
    if (flow->status != LS_OK)
        return ls_err_adopt(&flow->why);
    *f = (object_write){.object = object,
                        .pieces = pieces,
                        .n = n,
                        .replace = replace,
                        .path = f->path,
                        .temp = f->temp,
                        .trying = TRIES};
    ls_ckpt_object_path(flow->store->dir, object->hash, &f->path);
    if (ls_str_status(&f->path) != LS_OK) {
        fail_flow(flow);
        return flow->status;
    }
    begin_write(flow, f);
    feed(flow, f);
    return flow->status == LS_OK ? LS_OK : ls_err_adopt(&flow->why);
}

ls_status ls_ckpt_flow_end(ls_ckpt_flow *flow)
{
    while (flow->status == LS_OK && find_write(flow, IS_USED))
        push(flow);
    return flow->status == LS_OK ? LS_OK : ls_err_adopt(&flow->why);
}

ls_status ls_ckpt_object_write(ls_ckpt_store *store, const ls_ckpt_object *object,
                               const ls_ckpt_piece *pieces, int n, bool replace)
{
    ls_ckpt_flow *flow = NULL;
    ls_status st = LS_OK;

    LS_TRY(st, ls_ckpt_flow_open(&flow, store), out);
    LS_TRY(st, ls_ckpt_flow_put(flow, object, pieces, n, replace), out);
    LS_TRY(st, ls_ckpt_flow_end(flow), out);
out:
    ls_ckpt_flow_close(flow);
    return st;
}
