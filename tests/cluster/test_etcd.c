/* test_etcd.c -- keys, leases and the right to write a run, with real etcd servers: stopped,
 * killed, one of three; and addresses where there is none. */
#include "harness.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/elect/etcd.h"
#include "cluster/servers.h"
#include "cluster/elect/run_lease.h"
#include "net/sock_io.h"

static int64_t in_ms(int64_t ms)
{
    return ls_time_now_ns() + ms * LS_NS_PER_MS;
}

/* --- without a server ------------------------------------------------------------------------- */

LS_TEST(etcd_base64_both_ways)
{
    static const char *const rows[][2] = {{"", ""},
                                          {"f", "Zg=="},
                                          {"fo", "Zm8="},
                                          {"foo", "Zm9v"},
                                          {"foob", "Zm9vYg=="},
                                          {"\xff\xfe", "//4="},
                                          {"fooba", "Zm9vYmE="},
                                          {"foobar", "Zm9vYmFy"}};
    static const char *const bad[] = {
        "Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9\n", "Zm9v*"};
    ls_str text;

    ls_str_init(&text);
    for (size_t i = 0; i < LS_COUNT(rows); i++) { /* RFC 4648, section 10 */
        ls_str_clear(&text);
        ls_etcd_encode64(rows[i][0], strlen(rows[i][0]), &text);
        LS_CHECK_STR(text.p, rows[i][1]);
        ls_str_clear(&text);
        LS_CHECK_OK(ls_etcd_decode64(rows[i][1], &text));
        LS_CHECK_STR(text.p, rows[i][0]);
    }
    for (size_t i = 0; i < LS_COUNT(bad); i++)
        LS_CHECK_FAILS(ls_etcd_decode64(bad[i], &text), LS_EDATA, "is not base64");
    ls_str_release(&text);
}

LS_TEST(etcd_names_a_server_that_does_not_answer)
{
    char url[2][64];
    const char *urls[] = {url[0], url[1]}, *none[] = {"127.0.0.1:2379"};
    int64_t lease, before_ns = ls_time_now_ns();
    ls_etcd *e;

    for (int i = 0; i < 2; i++)
        snprintf(url[i], sizeof url[i], "http://127.0.0.1:%d", servers_port());
    LS_CHECK_FAILS(ls_etcd_open(&e, none, 1), LS_EUSAGE, "is no URL of etcd");
    LS_CHECK_FAILS(ls_etcd_open(&e, urls, 0), LS_EUSAGE, "1 to 16 URLs, not 0");
    LS_CHECK_OK(ls_etcd_open(&e, urls, 2));
    LS_CHECK_FAILS(ls_etcd_lease(e, 5, in_ms(700), &lease), LS_EDEADLINE, "does not answer");
    LS_CHECK(strstr(ls_err_last()->text, url[0]) && strstr(ls_err_last()->text, url[1]));
    LS_CHECK_WITHIN(before_ns, 20000);
    ls_etcd_close(e);
    for (uint64_t n = 1; n < 3; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_EQ(ls_etcd_open(&e, urls, 2), LS_ENOMEM);
    }
    ls_mem_fail_nth(0);
}

/* A server that answers each request with this text, and is not etcd. */
static void *answer(void *context)
{
    int fd, listen_fd = *(int *)context;
    ls_sock_address from;
    char request[4096];
    static const char *const texts[] = {
        "HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n[1,2,",
        ("HTTP/1.1 400 Bad\r\nContent-Length: 37\r\nConnection: close\r\n\r\n"
         "{\"message\":\"etcdserver: no such day\"}")};

    for (size_t i = 0; i < LS_COUNT(texts); i++) {
        LS_CHECK_OK(ls_sock_accept(listen_fd, ls_test_soon(), &fd, &from));
        LS_CHECK_OK(ls_sock_wait(fd, POLLIN, ls_test_soon()));
        LS_CHECK(recv(fd, request, sizeof request, 0) > 0);
        LS_CHECK_OK(ls_sock_io_write(fd, texts[i], strlen(texts[i]), ls_test_soon()));
        ls_sock_close(&fd);
    }
    return NULL;
}

LS_TEST(etcd_knows_a_server_that_is_something_else)
{
    ls_sock_address at;
    pthread_t thread;
    char text[128];
    const char *url = text;
    int64_t lease;
    ls_etcd *e;
    int fd;

    LS_CHECK_OK(ls_sock_listen(NULL, &fd));
    LS_CHECK_OK(ls_sock_local(fd, &at));
    snprintf(text, sizeof text, "http://%s/", at.text);
    LS_CHECK_EQ(pthread_create(&thread, NULL, answer, &fd), 0);
    LS_CHECK_OK(ls_etcd_open(&e, &url, 1));
    LS_CHECK_FAILS(ls_etcd_lease(e, 5, ls_test_soon(), &lease), LS_EIO,
                   "does not answer as etcd 3.4 does: status 404");
    LS_CHECK_FAILS(ls_etcd_lease(e, 5, ls_test_soon(), &lease), LS_EIO, "does not answer as etcd");
    LS_CHECK_FAILS(ls_etcd_lease(e, 5, ls_test_soon(), &lease), LS_EIO,
                   "refuses: etcdserver: no such day");
    ls_etcd_close(e);
    pthread_join(thread, NULL);
    ls_sock_close(&fd);
}

LS_TEST(run_lease_names_a_run_by_name_and_folder)
{
    char a[LS_RUN_LEASE_RUN], b[LS_RUN_LEASE_RUN];

    ls_run_lease_run("demo", "runs/demo", a); /* before the folder is made, and after */
    LS_CHECK_EQ(mkdir("runs", 0755), 0);
    ls_run_lease_run("demo", "runs/demo", b);
    LS_CHECK_STR(a, b);
    LS_CHECK_EQ(mkdir("runs/demo", 0755), 0);
    ls_run_lease_run("demo", "runs/demo", b);
    LS_CHECK_STR(a, b);
    ls_run_lease_run("demo", "./runs/../runs/demo/", b);
    LS_CHECK_STR(a, b);
    LS_CHECK_EQ(symlink("runs", "link"), 0);
    ls_run_lease_run("demo", "link/demo", b);
    LS_CHECK_STR(a, b);
    ls_run_lease_run("demo", "runs/other", b);
    LS_CHECK(strcmp(a, b) != 0 && strncmp(a, "demo-", 5) == 0);
    ls_run_lease_run("other", "runs/demo", b);
    LS_CHECK(strcmp(a, b) != 0);
}

/* --- keys ------------------------------------------------------------------------------------- */

LS_TEST_SECONDS(etcd_keys_leases_and_swaps, 120)
{
    const ls_etcd_if absent = {.key = "a/b"}, is_one = {.key = "a/b", .value = "one"};
    const ls_etcd_put one = {.key = "a/b", .value = "one"},
                      two = {.key = "a/b", .value = "two \"\xc3\xa4\""};
    bool done, found;
    int64_t lease;
    servers s;
    ls_str value;
    ls_etcd *e;

    servers_start(&s, 1);
    ls_str_init(&value);
    LS_CHECK_OK(ls_etcd_open(&e, s.urls, 1));
    LS_CHECK_OK(ls_etcd_get(e, "a/b", ls_test_soon(), &value, &found));
    LS_CHECK(!found);
    LS_CHECK_OK(ls_etcd_swap(e, &absent, 1, &one, 1, ls_test_soon(), &done));
    LS_CHECK(done);
    LS_CHECK_OK(ls_etcd_swap(e, &absent, 1, &two, 1, ls_test_soon(), &done));
    LS_CHECK(!done); /* the compare failed, and nothing was written */
    LS_CHECK_OK(ls_etcd_get(e, "a/b", ls_test_soon(), &value, &found));
    LS_CHECK_STR(value.p, "one");
    LS_CHECK_OK(ls_etcd_swap(e, &is_one, 1, &two, 1, ls_test_soon(), &done));
    LS_CHECK(done);
    LS_CHECK_OK(ls_etcd_swap(e, &is_one, 1, &two, 1, ls_test_soon(), &done));
    LS_CHECK(!done);
    LS_CHECK_OK(ls_etcd_get(e, "a/b", ls_test_soon(), &value, &found));
    LS_CHECK_STR(value.p, two.value);

    /* A key under a lease goes with it: given up, or not renewed. */
    LS_CHECK_OK(ls_etcd_lease(e, 60, ls_test_soon(), &lease));
    const ls_etcd_put leased = {.key = "l", .value = "x", .lease = lease};
    LS_CHECK_OK(ls_etcd_swap(e, NULL, 0, &leased, 1, ls_test_soon(), &done));
    LS_CHECK_OK(ls_etcd_renew(e, lease, ls_test_soon()));
    LS_CHECK_OK(ls_etcd_end_lease(e, lease, ls_test_soon()));
    LS_CHECK_OK(ls_etcd_get(e, "l", ls_test_soon(), &value, &found));
    LS_CHECK(!found);
    LS_CHECK_FAILS(ls_etcd_renew(e, lease, ls_test_soon()), LS_EPEER, "has run out");
    LS_CHECK_FAILS(ls_etcd_swap(e, NULL, 0, &leased, 1, ls_test_soon(), &done), LS_EIO,
                   "requested lease not found");
    LS_CHECK_OK(ls_etcd_lease(e, 1, ls_test_soon(), &lease));
    const ls_etcd_put brief = {.key = "l", .value = "y", .lease = lease};
    LS_CHECK_OK(ls_etcd_swap(e, NULL, 0, &brief, 1, ls_test_soon(), &done));
    found = true;
    for (int64_t until_ns = ls_test_soon(); found; usleep(50000)) {
        LS_CHECK(ls_time_now_ns() < until_ns);
        LS_CHECK_OK(ls_etcd_get(e, "l", ls_test_soon(), &value, &found));
    }
    /* Killed: said, with its address. */
    servers_signal(&s, 0, SIGKILL);
    LS_CHECK_FAILS(ls_etcd_get(e, "a/b", in_ms(500), &value, &found), LS_EDEADLINE, s.url[0]);
    ls_etcd_close(e);
    ls_str_release(&value);
    servers_stop(&s);
}

/* --- the right to write ----------------------------------------------------------------------- */

typedef struct loss {
    pthread_mutex_t guard;
    char why[400];
} loss;

static void on_lost(void *context, const char *why)
{
    loss *l = context;

    pthread_mutex_lock(&l->guard);
    snprintf(l->why, sizeof l->why, "%s", why);
    pthread_mutex_unlock(&l->guard);
}

static bool is_lost(loss *l, const char *part)
{
    pthread_mutex_lock(&l->guard);
    bool lost = strstr(l->why, part) != NULL && l->why[0];
    pthread_mutex_unlock(&l->guard);
    return lost;
}

/* On a busy machine a renewal may come late, which is said and does no harm: how often is no
 * matter. */
static void end_test(servers *s, ls_etcd *e)
{
    ls_etcd_close(e);
    servers_stop(s);
    LS_EXPECT_LOG((int)ls_log_count(LS_LOG_WARN));
}

static ls_run_lease_args args_of(const servers *s, loss *l)
{
    return (ls_run_lease_args){
        .urls = s->urls, .n_urls = s->n, .run = "demo-1", .lost = on_lost, .context = l};
}

/* A job that has the right to write, and one of its ranks. */
typedef struct owner {
    loss l;
    servers s;
    ls_run_lease_args args;
    ls_run_lease *t;
    ls_etcd *e;
    ls_run_lease_use use;
} owner;

static void begin_owner(owner *o, int n_servers)
{
    *o = (owner){.l = {.guard = PTHREAD_MUTEX_INITIALIZER}};
    servers_start(&o->s, n_servers);
    o->args = args_of(&o->s, &o->l);
    LS_CHECK_OK(ls_etcd_open(&o->e, o->s.urls, n_servers));
    LS_CHECK_OK(ls_run_lease_open(&o->t, &o->args, ls_test_soon()));
    o->use = (ls_run_lease_use){.etcd = o->e, .run = "demo-1", .id = ls_run_lease_id(o->t)};
}

static void end_owner(owner *o)
{
    ls_run_lease_close(o->t);
    end_test(&o->s, o->e);
}

LS_TEST_SECONDS(run_lease_is_had_by_one_job, 180)
{
    ls_run_lease *other;
    owner o;

    begin_owner(&o, 1);
    /* A second job waits for a lease to run out, which the first one renews: refused, by name. */
    LS_CHECK_FAILS(ls_run_lease_open(&other, &o.args, ls_test_soon()), LS_EBUSY, "on ");
    LS_CHECK(strstr(ls_err_last()->text, "is being written by another job"));
    char pid[32];
    snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    LS_CHECK(strstr(ls_err_last()->text, pid));

    ls_run_lease_use first = o.use, second = o.use;
    LS_CHECK_FAILS(ls_run_lease_commit(&first, 1, ls_test_soon()), LS_EBUSY, "a newer one writes");
    LS_CHECK_OK(ls_run_lease_claim(&first, 7, ls_test_soon()));
    LS_CHECK_EQ(first.generation, 7);
    LS_CHECK_OK(ls_run_lease_commit(&first, 10, ls_test_soon()));
    LS_CHECK_OK(
        ls_run_lease_commit(&first, 10, ls_test_soon())); /* asked again: an answer was lost */
    LS_CHECK_OK(ls_run_lease_claim(&second, 3, ls_test_soon())); /* another first rank */
    LS_CHECK_EQ(second.generation, 8);
    LS_CHECK_OK(ls_run_lease_commit(&second, 20, ls_test_soon()));
    LS_CHECK_FAILS(ls_run_lease_commit(&first, 30, ls_test_soon()), LS_EBUSY,
                   "step 30 of generation 7 is not saved: a newer one writes run \"demo-1\"");

    /* Given back, it is the next one's; the job that had it cannot write any more. */
    char id[LS_RUN_LEASE_ID];
    snprintf(id, sizeof id, "%s", ls_run_lease_id(o.t));
    second.id = id;
    ls_run_lease_close(o.t);
    int64_t before_ns = ls_time_now_ns();
    LS_CHECK_OK(ls_run_lease_open(&o.t, &o.args, ls_test_soon()));
    LS_CHECK_WITHIN(before_ns, 3000); /* no lease had to run out */
    LS_CHECK_FAILS(ls_run_lease_commit(&second, 40, ls_test_soon()), LS_EBUSY,
                   "has taken over run");
    LS_CHECK_FAILS(ls_run_lease_claim(&second, 1, ls_test_soon()), LS_EBUSY, "has taken over run");
    end_owner(&o);
}

LS_TEST_SECONDS(run_lease_of_a_killed_job_is_free_when_its_lease_ran_out, 180)
{
    loss l = {.guard = PTHREAD_MUTEX_INITIALIZER};
    ls_run_lease *t;
    servers s;
    int ready[2], status;
    char c;

    servers_start(&s, 1);
    ls_run_lease_args args = args_of(&s, &l);
    LS_CHECK_EQ(pipe(ready), 0);
    pid_t pid = fork(); /* before this process has a thread */
    LS_CHECK(pid >= 0);
    if (pid == 0) {
        LS_CHECK_OK(ls_run_lease_open(&t, &args, ls_test_soon()));
        LS_CHECK_EQ(write(ready[1], "x", 1), 1);
        pause();
        _exit(1);
    }
    LS_CHECK_EQ(read(ready[0], &c, 1), 1);
    LS_CHECK_EQ(kill(pid, SIGKILL), 0);
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK_OK(ls_run_lease_open(&t, &args, ls_test_soon())); /* a requeued job need not fail */
    ls_run_lease_close(t);
    end_test(&s, NULL);
}

/* A commit by a thread, as a background save is. */
typedef struct commit {
    ls_run_lease_use use;
    ls_status st;
} commit;

static void *do_commit(void *context)
{
    commit *c = context;

    c->st = ls_run_lease_commit(&c->use, 5, ls_test_soon());
    return NULL;
}

LS_TEST_SECONDS(run_lease_survives_ten_seconds_without_etcd, 240)
{
    pthread_t thread;
    owner o;

    begin_owner(&o, 1);
    commit c = {.use = o.use};
    LS_CHECK_OK(ls_run_lease_claim(&c.use, 1, ls_test_soon()));
    servers_signal(&o.s, 0, SIGSTOP);
    LS_CHECK_EQ(pthread_create(&thread, NULL, do_commit, &c), 0);
    sleep(10);
    servers_signal(&o.s, 0, SIGCONT);
    pthread_join(thread, NULL);
    LS_CHECK_EQ(c.st, LS_OK); /* it waited, then went through */
    /* The lease ran out meanwhile; the owner takes it again. */
    for (int64_t until_ns = ls_test_soon(); ls_log_count(LS_LOG_WARN) < 2; usleep(50000))
        LS_CHECK(ls_time_now_ns() < until_ns);
    ls_str leader;
    bool found = false;
    ls_str_init(&leader);
    for (int64_t until_ns = ls_test_soon(); !found; usleep(50000)) {
        LS_CHECK(ls_time_now_ns() < until_ns);
        LS_CHECK_OK(ls_etcd_get(o.e, "lineshaft/demo-1/leader", ls_test_soon(), &leader, &found));
    }
    LS_CHECK_STR(leader.p, ls_run_lease_id(o.t));
    ls_str_release(&leader);
    LS_CHECK_OK(ls_run_lease_commit(&c.use, 6, ls_test_soon()));
    LS_CHECK(!is_lost(&o.l, ""));
    end_owner(&o);
}

LS_TEST_SECONDS(run_lease_that_another_job_took_is_lost, 180)
{
    const ls_etcd_put thief = {.key = "lineshaft/demo-1/owner", .value = "9 on h2, pid 3"};
    ls_str value;
    bool done, found;
    owner o;

    ls_str_init(&value);
    begin_owner(&o, 1);
    LS_CHECK_OK(ls_run_lease_claim(&o.use, 1, ls_test_soon()));
    /* As if this job had been asleep while its lease ran out, and another one had come and gone. */
    LS_CHECK_OK(ls_etcd_swap(o.e, NULL, 0, &thief, 1, ls_test_soon(), &done));
    LS_CHECK_FAILS(ls_run_lease_commit(&o.use, 1, ls_test_soon()), LS_EBUSY,
                   "another job (on h2, pid 3) has taken over run \"demo-1\"");
    servers_signal(&o.s, 0, SIGSTOP); /* longer than the lease lasts */
    sleep(LS_RUN_LEASE_LEASE_S + 1);
    servers_signal(&o.s, 0, SIGCONT);
    for (int64_t until_ns = ls_test_soon(); !is_lost(&o.l, "on h2, pid 3"); usleep(50000))
        LS_CHECK(ls_time_now_ns() < until_ns);
    LS_CHECK_OK(ls_etcd_get(o.e, "lineshaft/demo-1/leader", ls_test_soon(), &value, &found));
    LS_CHECK(!found);
    ls_str_release(&value);
    end_owner(&o);
}

LS_TEST_SECONDS(run_lease_of_three_servers_outlives_one, 240)
{
    owner o;

    begin_owner(&o, 3);
    LS_CHECK_OK(ls_run_lease_claim(&o.use, 1, ls_test_soon()));
    LS_CHECK_OK(ls_run_lease_commit(&o.use, 1, ls_test_soon()));
    servers_signal(&o.s, 0, SIGKILL); /* the one that was asked first */
    LS_CHECK_OK(ls_run_lease_commit(&o.use, 2, ls_test_soon()));
    servers_signal(&o.s, 1, SIGKILL); /* one of three decides nothing */
    LS_CHECK_FAILS(ls_run_lease_commit(&o.use, 3, in_ms(2500)), LS_EDEADLINE, "does not answer");
    LS_CHECK(!is_lost(&o.l, ""));
    end_owner(&o);
}
