/* servers.c -- see servers.h. */
#include "cluster/servers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cluster/elect/etcd.h"
#include "harness.h"
#include "net/sock.h"

int servers_port(void)
{
    ls_sock_address at;
    int fd;

    LS_CHECK_OK(ls_sock_listen(NULL, &fd));
    LS_CHECK_OK(ls_sock_local(fd, &at));
    ls_sock_close(&fd);
    return (int)strtol(strrchr(at.text, ':') + 1, NULL, 10);
}

static void run_etcd(const char *name, const char *client, const char *peer, const char *all)
{
    char dir[64], log[64];

    snprintf(dir, sizeof dir, "%s.etcd", name);
    snprintf(log, sizeof log, "%s.log", name);
    int fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    dup2(fd, 1);
    dup2(fd, 2);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execlp("etcd", "etcd", "--name", name, "--data-dir", dir, "--listen-client-urls", client,
           "--advertise-client-urls", client, "--listen-peer-urls", peer,
           "--initial-advertise-peer-urls", peer, "--initial-cluster", all,
           "--initial-cluster-state", "new", "--heartbeat-interval", "100", "--election-timeout",
           "1000", "--logger", "zap", "--log-level", "error", (char *)NULL);
    _exit(127);
}

static void await(servers *s, int which)
{
    const char *url = s->url[which];
    int64_t soon_ns = ls_test_soon();
    ls_str value;
    ls_etcd *e;
    bool found;

    ls_str_init(&value);
    LS_CHECK_OK(ls_etcd_open(&e, &url, 1));
    LS_CHECK_OK(ls_etcd_get(e, "nothing", soon_ns, &value, &found));
    ls_etcd_close(e);
    ls_str_release(&value);
}

void servers_start(servers *s, int n)
{
    char peer[SERVERS][64], all[400] = "", name[16];

    if (system("command -v etcd >/dev/null 2>&1") != 0)
        ls_test_skip("etcd is not here (Debian package etcd-server)");
    *s = (servers){.n = n};
    for (int i = 0; i < n; i++) {
        snprintf(s->url[i], sizeof s->url[i], "http://127.0.0.1:%d", servers_port());
        snprintf(peer[i], sizeof peer[i], "http://127.0.0.1:%d", servers_port());
        size_t at = strlen(all);
        snprintf(all + at, sizeof all - at, "%sm%d=%s", i ? "," : "", i, peer[i]);
        s->urls[i] = s->url[i];
    }
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "m%d", i);
        s->pid[i] = fork();
        LS_CHECK(s->pid[i] >= 0);
        if (s->pid[i] == 0)
            run_etcd(name, s->url[i], peer[i], all);
    }
    for (int i = 0; i < n; i++)
        await(s, i);
}

void servers_signal(servers *s, int which, int signal)
{
    LS_CHECK_EQ(kill(s->pid[which], signal), 0);
    if (signal == SIGKILL) {
        waitpid(s->pid[which], NULL, 0);
        s->pid[which] = 0;
    }
}

void servers_stop(servers *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->pid[i] > 0)
            servers_signal(s, i, SIGKILL);
}
