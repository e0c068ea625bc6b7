/* task_rendezvous.c -- tasks of one launcher meet through a file.
 *
 *     task 0                                     task 3
 *     find_path: cache folder, "meet", hash of   find_path: the same name
 *       launcher, user and job number            await_first: no such file yet
 *     be_first: a fresh secret
 *     listens; ls_task_rendezvous_tell:
 *       "10.0.0.1:40123 SECRET PID HOST"   --->  read_line: sound, ours, its process lives
 *     all have met: the file goes                joins 10.0.0.1:40123
 *
 * The file has mode 0600 and is put in place by a rename, so nobody reads half of it. A file that a
 * killed job left is recognised by its process being gone, where that ran on the same machine; job
 * numbers of batch systems do not repeat.
 *
 * Two numbers follow from it. `srun --ntasks 4 --nodes 2` with -n 3 makes a job of 4 "machines" with
 * 3 ranks each, 12 in all. On each real machine there are 2 tasks, so 6 ranks share its cards: rank
 * 1 of the second task takes card 4 (ls_task_rendezvous_widen). */
#include "launch/task_rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "base/time.h"
#include "launch/job_rank.h"
#include "net/digest.h"
#include "net/secret.h"
#include "net/sock.h"

enum { LINE = 1024, LOOK_MS = 20 };
_Static_assert((int)LS_SECRET_BYTES == (int)LS_DIGEST_BYTES, "both are written in 64 digits");

/* What a launcher calls a job: the variables that hold it; the first must be set. */
static const struct {
    const char *launcher, *names[4];
} jobs[] = {
    {"slurm", {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}},
    {"openmpi", {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"pmix", {"PMIX_NAMESPACE"}},
    {"torchrun",
     {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
};

ls_status ls_task_rendezvous_launched(bool *launched_out, ls_launcher_env *env_out)
{
    ls_status st = ls_launcher_env_find(env_out);

    *launched_out = st == LS_OK && env_out->rank_from && env_out->world > 1 &&
                    strcmp(env_out->launcher, "lineshaft") != 0;
    return st;
}

bool ls_task_rendezvous_is_task(void)
{
    static bool told;
    ls_launcher_env env;
    bool launched;

    if (ls_job_rank_here())
        return false;
    if (ls_task_rendezvous_launched(&launched, &env) == LS_OK)
        return launched;
    /* They may mean something else to somebody else. */
    if (!told)
        ls_log(LS_LOG_WARN, "%s; this process does not take it for a task of a launcher",
               ls_err_last()->text);
    told = true;
    ls_err_clear();
    return false;
}

void ls_task_rendezvous_widen(int *local_rank, int *local_ranks)
{
    int task, tasks;

    ls_launcher_env_task(&task, &tasks);
    *local_rank += task * *local_ranks;
    *local_ranks *= tasks;
}

static bool is_one_machine(const ls_launcher_env *p)
{
    return p->local_world == p->world;
}

/* Where the tasks of this job meet. */
static ls_status find_path(ls_task_rendezvous *m, const ls_launcher_env *p)
{
    ls_str about;
    ls_status st = LS_OK;
    bool known = false;

    ls_str_init(&about);
    ls_str_printf(&about, "%s of user %u", p->launcher, (unsigned)getuid());
    for (size_t i = 0; i < LS_COUNT(jobs) && !known; i++) {
        if (strcmp(jobs[i].launcher, p->launcher) != 0 || !getenv(jobs[i].names[0]))
            continue;
        known = true;
        for (int k = 0; k < 4 && jobs[i].names[k]; k++) {
            const char *value = getenv(jobs[i].names[k]);
            ls_str_printf(&about, " %s=%s", jobs[i].names[k], value ? value : "");
        }
    }
    if (!known && is_one_machine(p)) { /* MPICH: its tasks on a machine have one parent */
        ls_str_printf(&about, " parent=%d", (int)getppid());
        known = true;
    }
    LS_TRY(st, ls_str_status(&about), out);
    if (known)
        ls_file_cache_path("meet", about.p, 24, m->path, sizeof m->path);
    if (!known || !m->path[0]) {
        st = ls_fail(LS_EUSAGE, "rank %d of %d (%s): %s", p->rank, p->world, p->rank_from,
                     known ? "there is no home folder in which the tasks could meet"
                           : "no variable identifies the tasks of this job");
        ls_err_hint("Give --listen ADDRESS:PORT --nodes N --secret FILE to the first task and "
                    "--join to the others.");
    }
out:
    ls_str_release(&about);
    return st;
}

/* --- the first task --------------------------------------------------------------------------- */

static ls_status be_first(ls_task_rendezvous *m, const ls_launcher_env *p)
{
    uint8_t secret[LS_SECRET_BYTES];
    char host[256] = "localhost";
    ls_status st;

    gethostname(host, sizeof host - 1);
    (void)unlink(m->path); /* left by a job of the same number */
    snprintf(m->address, sizeof m->address, "%.256s:0",
             is_one_machine(p)   ? "127.0.0.1"
             : p->master_addr[0] ? p->master_addr
                                 : host);
    LS_TRY(st, ls_secret_random(secret, sizeof secret), out);
    st = ls_secret_to_fd(secret, &m->secret_fd);
out:
    explicit_bzero(secret, sizeof secret);
    return st;
}

ls_status ls_task_rendezvous_tell(ls_task_rendezvous *m, const char *address)
{
    char temporary[sizeof m->path + 32], line[LINE], folder[sizeof m->path], host[256] = "?";
    char hex[LS_DIGEST_HEX] = "";
    uint8_t secret[LS_SECRET_BYTES];
    int fd = -1, n = 0;
    ls_status st = LS_OK;

    gethostname(host, sizeof host - 1);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(m->path, '/') - m->path), m->path);
    snprintf(temporary, sizeof temporary, "%s.%d", m->path, (int)getpid());
    LS_TRY(st, ls_file_make_dirs(folder), out);
    if (pread(m->secret_fd, secret, sizeof secret, 0) != (ssize_t)sizeof secret) {
        st = ls_fail_sys(LS_EIO, "cannot read the secret of the job");
        goto out;
    }
    ls_digest_hex(secret, hex);
    n = snprintf(line, sizeof line, "%s %s %d %s\n", address, hex, (int)getpid(), host);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot write \"%s\", where the other tasks look for this one",
                         temporary);
        goto out;
    }
    LS_TRY(st, ls_file_write_all(fd, line, (size_t)n, temporary), out);
    if (rename(temporary, m->path) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot write \"%s\", where the other tasks look for this one",
                         m->path);
        (void)unlink(temporary);
        goto out;
    }
    m->written = true;
out:
    ls_sock_close(&fd);
    explicit_bzero(line, sizeof line);
    explicit_bzero(hex, sizeof hex);
    explicit_bzero(secret, sizeof secret);
    return st;
}

/* --- the others ------------------------------------------------------------------------------- */

/* Whether the file is there, whole, ours, and of a process that runs. */
static bool read_line(ls_task_rendezvous *m, uint8_t secret[LS_SECRET_BYTES])
{
    char line[LINE], hex[LS_DIGEST_HEX], host[256], own[256] = "?";
    int fd = open(m->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC), pid;
    struct stat about;
    bool good = false;

    if (fd < 0)
        return false;
    ssize_t n = read(fd, line, sizeof line - 1);
    bool ours = fstat(fd, &about) == 0 && about.st_uid == getuid() && !(about.st_mode & 077);
    close(fd);
    line[n > 0 ? n : 0] = '\0';
    gethostname(own, sizeof own - 1);
    if (ours && sscanf(line, "%319s %64s %d %255s", m->address, hex, &pid, host) == 4 &&
        ls_digest_parse(hex, secret))
        good = strcmp(host, own) != 0 || kill(pid, 0) == 0 || errno != ESRCH;
    explicit_bzero(line, sizeof line);
    explicit_bzero(hex, sizeof hex);
    return good;
}

static ls_status await_first(ls_task_rendezvous *m, const ls_launcher_env *p, int64_t wait_s)
{
    int64_t deadline_ns = ls_time_now_ns() + wait_s * LS_NS_PER_S;
    uint8_t secret[LS_SECRET_BYTES];

    while (!read_line(m, secret)) {
        if (ls_time_now_ns() >= deadline_ns) {
            ls_fail(LS_EDEADLINE,
                    "rank %d of %d (%s) found no first task of its job within %lld s: there is no "
                    "\"%s\"",
                    p->rank, p->world, p->rank_from, (long long)wait_s, m->path);
            ls_err_hint("All tasks need the same home folder, or --listen, --join and --secret; "
                        "a process that is not one of several tasks must unset %s.",
                        p->rank_from);
            return LS_EDEADLINE;
        }
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * LS_NS_PER_MS}, NULL);
    }
    ls_status st = ls_secret_to_fd(secret, &m->secret_fd);
    explicit_bzero(secret, sizeof secret);
    return st;
}

/* --- both ------------------------------------------------------------------------------------- */

ls_status ls_task_rendezvous_open(ls_task_rendezvous *m, const ls_launcher_env *env,
                                  ls_launch_nodes *nodes)
{
    ls_status st;

    *m = (ls_task_rendezvous){.hosts = env->rank == 0, .secret_fd = -1};
    LS_TRY(st, find_path(m, env), out);
    if (m->hosts)
        LS_TRY(st, be_first(m, env), out);
    else
        LS_TRY(st, await_first(m, env, nodes->wait_s), out);
    *(m->hosts ? &nodes->listen : &nodes->join) = m->address;
    nodes->nodes = env->world;
    nodes->secret_fd = m->secret_fd;
    nodes->quiet = true;
    nodes->launcher = env->launcher;
out:
    return st;
}

void ls_task_rendezvous_close(ls_task_rendezvous *meet)
{
    if (meet->written)
        (void)unlink(meet->path);
    meet->written = false;
    if (meet->path[0] && meet->secret_fd >= 0)
        close(meet->secret_fd);
    meet->secret_fd = -1;
}
