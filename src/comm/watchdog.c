/* watchdog.c -- waits for a request until its deadline: here a hang is detected.
 *
 * When the deadline passes, hang_report.c says which rank did not come, and the communicator breaks.
 * A collective inside one node that is run at once waits with the same deadline in node/wait.c.
 * Three places detect that something hangs:
 *
 *     a call of a communicator   this file, and node/wait.c       by the deadline of the call
 *     a worker that is stopped   cluster/member/worker_channel.h  by the patience of its agent
 *     a silent machine           cluster/join/heartbeat_watch.c   by the timeout of heartbeats */
#include "comm/comm_impl.h"

#include <sched.h>
#include <time.h>
#include "base/time.h"

enum { WAIT_SLEEP_NS = 1000000, EAGER_BYTES = 16 << 10, EAGER_TURNS = 200 };

/* How many times a wait for a small message between nodes polls again at once. Sleeping and waking
 * takes longer than the network. Ranks that share cores yield to each other between polls;
 * otherwise the core is kept, because the next process would have it for a whole time slice. */
static int eager_turns(const ls_request *f)
{
    int64_t bytes = f->coll.count * ls_dtype_bytes(f->coll.type);

    return bytes <= EAGER_BYTES ? EAGER_TURNS : 0;
}

/* Until something may have happened. Under the lock, which is released meanwhile. */
static void idle(ls_fabric *fabric, int64_t deadline_ns, int turns, int eager)
{
    bool by_network = fabric->transport && fabric->network && atomic_load(&fabric->wanted) == 0;

    if (by_network && turns < eager) {
        if (fabric->crowded)
            sched_yield();
    } else if (by_network)
        fabric->transport->table->sleep(fabric->transport,
                                        ls_min_i64(deadline_ns, ls_time_now_ns() + WAIT_SLEEP_NS));
    else if (turns > 20) {
        pthread_mutex_unlock(&fabric->lock);
        if (turns > 200)
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        else
            sched_yield();
        pthread_mutex_lock(&fabric->lock);
    }
}

ls_status ls_watchdog_wait(ls_comm *c, ls_request *f, int64_t deadline_ns)
{
    ls_fabric *fabric = c->fabric;
    int eager = eager_turns(f);
    ls_status st = LS_OK;

    for (int turns = 0; f->state != LS_REQUEST_DONE; turns++) {
        bool moved = false;
        LS_TRY(st, ls_fabric_check(fabric), out);
        st = ls_request_move_all(fabric, &moved);
        if (st == LS_OK && f->state != LS_REQUEST_DONE && ls_time_now_ns() >= deadline_ns)
            st = ls_hang_report(c, f);
        if (st != LS_OK) {
            st = ls_fabric_fail(fabric);
            goto out;
        }
        turns = moved ? 0 : turns;
        if (!moved && f->state != LS_REQUEST_DONE)
            idle(fabric, deadline_ns, turns, eager);
        ls_fabric_let_in(fabric);
    }
out:
    return st;
}
