/* staging.c -- places in host memory, and the order of their readers and writers.
 *
 *     stream    copy a in | mark            copy b out (waits for nothing)      copy c in | mark
 *     host               wait for the mark; exchange; queue "copy b out"  ...  wait; exchange
 *
 * A place is written by copies and by communicators. A copy into it is queued behind the copy that
 * last read it, and the host waits for the former before a communicator writes: so both alternate
 * without more waiting. A caller that lets a communicator write without such a copy marks the place
 * and waits for the mark first. */
#include "parallel/staging.h"

#include "base/log.h"
#include "base/mem.h"
#include "parallel/shared_pages.h"

typedef struct place_memory {
    ls_staging_memory memory; /* owned */
    ls_event *mark;           /* owned */
} place_memory;

struct ls_staging {
    ls_comm *comm;     /* borrowed */
    ls_stream *stream; /* borrowed */
    int64_t bytes;     /* of a place */
    int n;
    place_memory *places; /* owned */
};

int64_t ls_staging_bytes(int places, int64_t bytes)
{
    return places * ls_shared_pages(bytes);
}

ls_status ls_staging_alloc(ls_staging_memory *memory, ls_comm *comm, ls_device *device,
                           int64_t bytes, const char *what, bool warns)
{
    int64_t all = ls_staging_bytes(1, bytes);
    ls_status st = ls_comm_alloc(comm, all, what, &memory->at);

    if (st != LS_OK)
        return st;
    memory->locked = ls_device_host_lock(device, memory->at, all, what) == LS_OK;
    if (!memory->locked && warns)
        ls_log(LS_LOG_WARN, "%s: exchanges with other ranks are slower for it",
               ls_err_last()->text);
    if (!memory->locked)
        ls_err_clear();
    return LS_OK;
}

void ls_staging_free(ls_staging_memory *memory, ls_comm *comm, ls_device *device)
{
    if (memory->locked)
        ls_device_host_unlock(device, memory->at);
    if (memory->at)
        ls_comm_free(comm, memory->at);
    *memory = (ls_staging_memory){.at = NULL};
}

static ls_status open_place(ls_staging *s, place_memory *p, const char *what, bool first)
{
    ls_device *device = ls_stream_device(s->stream);
    ls_status st = ls_staging_alloc(&p->memory, s->comm, device, s->bytes, what, first);

    return st == LS_OK ? ls_event_create(&p->mark, device) : st;
}

ls_status ls_staging_open(ls_staging **staging_out, ls_comm *comm, ls_stream *stream, int places,
                          int64_t bytes, const char *what)
{
    ls_staging *s = ls_mem_alloc(sizeof *s);
    ls_status st = LS_OK;

    if (!s)
        return LS_ENOMEM;
    *s = (ls_staging){.comm = comm, .stream = stream, .bytes = ls_staging_bytes(1, bytes)};
    s->places = ls_mem_array((size_t)places, sizeof *s->places);
    LS_TRY(st, s->places ? LS_OK : LS_ENOMEM, out);
    for (s->n = 0; s->n < places;) {
        s->n++; /* half of it is closed too */
        LS_TRY(st, open_place(s, &s->places[s->n - 1], what, s->n == 1), out);
    }
    *staging_out = s;
out:
    if (st != LS_OK)
        ls_staging_close(s);
    return st;
}

void ls_staging_close(ls_staging *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n; i++) {
        place_memory *p = &s->places[i];
        ls_event_free(p->mark);
        ls_staging_free(&p->memory, s->comm, ls_stream_device(s->stream));
    }
    ls_mem_free(s->places);
    ls_mem_free(s);
}

ls_stream *ls_staging_stream(const ls_staging *staging)
{
    return staging->stream;
}

void *ls_staging_at(const ls_staging *staging, int place)
{
    return staging->places[place].memory.at;
}

/* Where a copy begins; it must end inside. */
static char *inside(const ls_staging *s, int place, int64_t at, int64_t bytes)
{
    LS_BUG_IF(at + bytes > s->bytes, "%lld bytes from %lld on do not fit into a place of %lld",
              (long long)bytes, (long long)at, (long long)s->bytes);
    return (char *)s->places[place].memory.at + at;
}

void ls_staging_take(ls_staging *staging, int place, int64_t at, const void *from, int64_t bytes)
{
    ls_stream_copy_out(staging->stream, inside(staging, place, at, bytes), from, bytes);
}

void ls_staging_mark(ls_staging *staging, int place)
{
    ls_event_record(staging->places[place].mark, staging->stream);
}

/* The stream reports what went wrong on the device: it knows the rows. */
ls_status ls_staging_wait(ls_staging *staging, int place, int64_t deadline_ns)
{
    ls_status st = LS_OK;

    if (!ls_stream_failed(staging->stream))
        st = ls_event_sync(staging->places[place].mark, deadline_ns);
    if (st == LS_EDEADLINE || (st == LS_OK && !ls_stream_failed(staging->stream)))
        return st;
    ls_status why = ls_stream_sync(staging->stream, deadline_ns);
    return why != LS_OK ? why : st;
}

void ls_staging_give(ls_staging *staging, int place, int64_t at, void *to, int64_t bytes)
{
    ls_stream_copy_in(staging->stream, to, inside(staging, place, at, bytes), bytes);
}

/* --- collectives of any size ------------------------------------------------------------------ */

static bool brings(const ls_comm *comm, const ls_coll *coll)
{
    return coll->kind != LS_COLL_RECV &&
           (coll->kind != LS_COLL_BROADCAST || coll->peer == ls_comm_rank(comm));
}

static bool receives(const ls_comm *comm, const ls_coll *coll)
{
    return coll->kind != LS_COLL_SEND &&
           (coll->kind != LS_COLL_BROADCAST || coll->peer != ls_comm_rank(comm));
}

ls_status ls_staging_run(ls_staging *s, ls_comm *comm, const ls_coll *coll, int64_t deadline_ns)
{
    int64_t size = ls_dtype_bytes(coll->type), most = s->bytes / size;
    ls_status st = LS_OK;

    LS_BUG_IF(coll->kind != LS_COLL_ALL_REDUCE && coll->kind != LS_COLL_BROADCAST &&
                  coll->kind != LS_COLL_SEND && coll->kind != LS_COLL_RECV,
              "a collective of kind %d in pieces", (int)coll->kind);
    for (int64_t done = 0; done < coll->count; done += most) {
        ls_coll piece = *coll;
        piece.count = ls_min_i64(most, coll->count - done);
        piece.in = piece.out = s->places[0].memory.at;
        if (brings(comm, coll))
            ls_staging_take(s, 0, 0, (const char *)coll->in + done * size, piece.count * size);
        ls_staging_mark(s, 0);
        LS_TRY(st, ls_staging_wait(s, 0, deadline_ns), out);
        LS_TRY(st, ls_comm_run(comm, &piece, deadline_ns), out);
        if (receives(comm, coll))
            ls_staging_give(s, 0, 0, (char *)coll->out + done * size, piece.count * size);
    }
out:
    return st;
}
