/* ckpt_fetch.c -- reads whole objects one after the other, ahead of the thread that checks them.
 *
 * Requests run ahead of the caller, across the border from one object to the next, so the disk is
 * busy while this thread hashes what has come and the caller copies it out:
 *
 *     object        A A A A A A | B B B B | C C C        . not requested yet
 *     request       h h h h c c | r r r .   . . .        r under way   c come   h hashed
 *
 * The hash of all its bytes, computed in order as they come, is an object's name and proves the
 * whole object. The checksums of its blocks would prove it once more at the same price; they are
 * compared only when the name is wrong, to say where. `strict` compares both always. An object of a
 * signed manifest is also proved by its SHA-256. */
#include "checkpoint/ckpt_impl.h"

#include <errno.h>
#include "base/disk.h"
#include "base/mem.h"

enum { CHUNK = 4 << 20, CHUNKS = 12, WINDOW = 8 };
#define AHEAD (96 * LS_MIB) /* memory of the current object and of those that are read ahead */

/* An object that is being read. */
typedef struct item {
    bool open;
    ls_ckpt_reader reader;
    int64_t asked, hashed; /* bytes from its beginning */
    int requests;          /* under way */
    ls_hash_stream hash;
    bool digests; /* its SHA-256 is made, too: */
    ls_digest sha;
    ls_err_record why; /* code LS_OK: nothing is wrong with it so far */
} item;

typedef struct chunk {
    item *of; /* NULL: free */
    int64_t at, len;
} chunk;

struct ls_ckpt_fetch {
    const ls_ckpt *ckpt; /* borrowed */
    const int *objects;  /* borrowed; in this order */
    int n;
    bool strict;
    ls_disk *disk;
    int next, asking;   /* positions in `objects`: to be handed out; to be requested */
    item items[WINDOW]; /* of place i: i % WINDOW */
    chunk chunks[CHUNKS];
    int64_t held; /* bytes of items that are open */
    void *spare;  /* owned: memory for the next one; its bytes */
    int64_t spare_bytes, bytes_read;
};

ls_status ls_ckpt_fetch_open(ls_ckpt_fetch **fetch_out, const ls_ckpt *ckpt, const int *objects,
                             int n, bool strict)
{
    ls_ckpt_fetch *f = ls_mem_alloc(sizeof *f);
    ls_status st = LS_OK;

    if (!f)
        return LS_ENOMEM;
    f->ckpt = ckpt;
    f->objects = objects;
    f->n = n;
    f->strict = strict;
    LS_TRY(st, ls_disk_open(&f->disk, CHUNKS), out);
    *fetch_out = f;
out:
    if (st != LS_OK)
        ls_ckpt_fetch_close(f);
    return st;
}

/* Reuse its memory for the next one: fresh pages cost as much as hashing. */
static void close_item(ls_ckpt_fetch *f, item *it)
{
    int64_t bytes = it->open ? it->reader.object->bytes : 0;

    if (!it->open)
        return;
    f->held -= bytes;
    if (it->reader.bytes && bytes > f->spare_bytes) {
        ls_mem_free(f->spare);
        f->spare = it->reader.bytes;
        f->spare_bytes = bytes;
        it->reader.bytes = NULL;
    }
    ls_ckpt_reader_close(&it->reader);
    ls_digest_release(&it->sha);
    it->open = false;
}

void ls_ckpt_fetch_close(ls_ckpt_fetch *fetch)
{
    if (!fetch)
        return;
    ls_disk_close(fetch->disk); /* waits: memory is in use until then */
    for (int i = 0; i < WINDOW; i++)
        close_item(fetch, &fetch->items[i]);
    ls_mem_free(fetch->spare);
    ls_mem_free(fetch);
}

int64_t ls_ckpt_fetch_bytes(const ls_ckpt_fetch *fetch)
{
    return fetch->bytes_read;
}

/* Start to read the object at this place. A failure stays in the item until the caller reaches it:
 * objects before it are still handed out. */
static void open_item(ls_ckpt_fetch *f, item *it, int place)
{
    const ls_ckpt_object *o = &f->ckpt->objects[f->objects[place]];
    bool reuses = f->spare_bytes >= o->bytes;

    *it = (item){.open = true, .digests = o->by_sha || (f->strict && o->has_sha)};
    f->held += o->bytes;
    ls_hash_begin(&it->hash);
    if (ls_ckpt_reader_open(&it->reader, f->ckpt->dir, o, reuses ? f->spare : NULL) != LS_OK) {
        it->why = *ls_err_last();
        it->reader.object = o;
        return;
    }
    if (reuses) {
        f->spare = NULL;
        f->spare_bytes = 0;
    }
    if (it->digests && ls_digest_begin(&it->sha) != LS_OK)
        it->why = *ls_err_last();
}

static chunk *free_chunk(ls_ckpt_fetch *f)
{
    for (int i = 0; i < CHUNKS; i++)
        if (!f->chunks[i].of)
            return &f->chunks[i];
    return NULL;
}

/* The object to request next; NULL: none, or none for now. The one that the caller waits for is opened
 * in any case, even if it alone is larger than AHEAD; the others only while all open ones fit. Example,
 * objects of 64, 20, 20 and 64 MiB: 64 + 20 are read ahead together, the third waits for the first. */
static item *to_ask(ls_ckpt_fetch *f)
{
    while (f->asking < f->n && f->asking < f->next + WINDOW) {
        item *it = &f->items[f->asking % WINDOW];
        if (!it->open) {
            int64_t bytes = f->ckpt->objects[f->objects[f->asking]].bytes;
            if (f->asking > f->next && f->held + bytes > AHEAD)
                return NULL;
            open_item(f, it, f->asking);
        }
        if (it->why.code == LS_OK && it->asked < it->reader.object->bytes)
            return it;
        f->asking++;
    }
    return NULL;
}

/* Keep as many requests under way as are allowed. */
static void ask(ls_ckpt_fetch *f)
{
    chunk *c;
    item *it;

    while ((c = free_chunk(f)) != NULL && (it = to_ask(f)) != NULL) {
        *c = (chunk){.of = it,
                     .at = it->asked,
                     .len = ls_min_i64(CHUNK, it->reader.object->bytes - it->asked)};
        it->asked += c->len;
        it->requests++;
        ls_disk_submit(f->disk, &(ls_disk_request){.what = LS_DISK_READ,
                                                   .fd = it->reader.fd,
                                                   .bytes = it->reader.bytes + c->at,
                                                   .len = c->len,
                                                   .at = c->at,
                                                   .tag = (int)(c - f->chunks)});
    }
}

/* The end of a request: its blocks have come, or its object cannot be read. A short read and a
 * stale handle are handled when no request of the object is under way. */
static void take(ls_ckpt_fetch *f)
{
    ls_disk_end end = ls_disk_take(f->disk);
    chunk *c = &f->chunks[end.tag];
    item *it = c->of;

    if (end.error && end.error != ESTALE && it->why.code == LS_OK) {
        errno = end.error;
        ls_fail_sys(LS_EIO, "cannot read object \"%s\"", it->reader.path.p);
        it->why = *ls_err_last();
    }
    for (int64_t at = c->at; at < c->at + c->len && end.done == c->len; at += LS_CKPT_BLOCK)
        it->reader.loaded[at / LS_CKPT_BLOCK] = true;
    f->bytes_read += end.done;
    it->requests--;
    c->of = NULL;
}

/* Hash what has come of it, in order. */
static void digest(ls_ckpt_fetch *f, item *it)
{
    const ls_ckpt_reader *r = &it->reader;

    while (it->why.code == LS_OK && it->hashed < r->object->bytes) {
        int64_t block = it->hashed / LS_CKPT_BLOCK;
        int64_t len = ls_min_i64(LS_CKPT_BLOCK, r->object->bytes - it->hashed);
        if (!r->loaded[block])
            return;
        if (f->strict && ls_ckpt_reader_check(r, block, block + 1) != LS_OK)
            it->why = *ls_err_last();
        ls_hash_add(&it->hash, r->bytes + it->hashed, (size_t)len);
        if (it->digests)
            ls_digest_add(&it->sha, r->bytes + it->hashed, (size_t)len);
        it->hashed += len;
        ask(f);
    }
}

/* All bytes have come: compare their hash with the object's name. */
static ls_status prove(item *it)
{
    const ls_ckpt_object *o = it->reader.object;
    uint8_t sha[LS_DIGEST_BYTES];
    ls_status st = LS_OK;

    if (ls_hash_equal(ls_hash_end(&it->hash), o->hash)) {
        if (it->digests && (st = ls_digest_end(&it->sha, sha)) == LS_OK)
            st = ls_ckpt_reader_prove(&it->reader, sha);
        return st;
    }
    st = ls_ckpt_reader_check(&it->reader, 0, ls_ckpt_blocks(o->bytes));
    return st != LS_OK ? st
                       : ls_fail(LS_EDATA, "object \"%s\" does not have the hash of its name",
                                 it->reader.path.p);
}

/* Requests go on while this thread hashes: digest() asks for more after each block. When nothing of the
 * object is under way and bytes are missing (a short read, a stale handle), they are read here, with
 * the retries of ls_ckpt_reader_need(). */
ls_status ls_ckpt_fetch_next(ls_ckpt_fetch *fetch, ls_ckpt_reader **reader_out)
{
    ls_ckpt_fetch *f = fetch;

    if (f->next > 0)
        close_item(f, &f->items[(f->next - 1) % WINDOW]);
    LS_BUG_IF(f->next >= f->n, "there is no object left");
    item *it = &f->items[f->next % WINDOW];
    ask(f);
    digest(f, it);
    while (it->why.code == LS_OK && it->hashed < it->reader.object->bytes) {
        if (it->requests > 0)
            take(f);
        else if (ls_ckpt_reader_need(&it->reader, 0, it->reader.object->bytes) != LS_OK)
            it->why = *ls_err_last();
        ask(f);
        digest(f, it);
    }
    while (it->requests > 0)
        take(f);
    f->next++;
    if (it->why.code != LS_OK)
        return ls_err_adopt(&it->why);
    *reader_out = &it->reader;
    return prove(it);
}
