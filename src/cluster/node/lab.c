/* lab.c -- namespaces by unshare(), devices by iproute2.
 *
 * iproute2 and not netlink of our own: a few batches of its commands are easy to read, to try by
 * hand and to get right, and speed does not matter here. The commands run inside of the namespace
 * that they change, so nothing that goes wrong can touch the host's.
 *
 * Burst: a token bucket lets this much pass at once. Below a few packets' worth it never reaches
 * its rate, because the kernel wakes up too late to use all tokens; much above, short messages see
 * no limit at all. 1/600 s of the rate, in steps of 128 KiB: 256 KiB at 1 Gbit/s, 2 MiB at 10. */
#include "cluster/node/lab.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/time.h"
#include "cluster/node/spawn.h"

enum { BURST_STEP = 128 << 10, BURSTS_PER_S = 600, NAME = 16, PER_NET = 250, SAID = 400 };

typedef struct node {
    int net_fd; /* -1: none */
    char host[NAME], address[NAME + 4];
} node;

struct ls_lab {
    int n;
    node *nodes;   /* owned */
    int switch_fd; /* the namespace of the bridge */
    int64_t bits, burst;
    int64_t deadline_ns;
    char ip[PATH_MAX], tc[PATH_MAX];
};

/* --- units ------------------------------------------------------------------------------------ */

typedef struct unit {
    const char *name;
    double factor;
} unit;

static bool parse_unit(const char *text, const unit *units, double *value_out)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return false;
    double n = strtod(text, &end);
    if ((size_t)(end - text) != strspn(text, "0123456789."))
        return false; /* not 0x10, not 1e9 */
    for (; units->name; units++)
        if (strcmp(end, units->name) == 0) {
            *value_out = n * units->factor;
            return true;
        }
    return false;
}

ls_status ls_lab_parse_rate(const char *text, int64_t *bits_out)
{
    static const unit units[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {NULL, 0}};
    double bits;

    if (!parse_unit(text, units, &bits)) {
        ls_fail(LS_EUSAGE, "\"%.40s\" is no speed of a link", text);
        ls_err_hint("Write 100mbit, 1gbit, 10gbit, or none for no limit.");
        return LS_EUSAGE;
    }
    if (!(bits >= 64e3 && bits <= 400e9))
        return ls_fail(LS_EUSAGE, "the speed \"%.40s\" is outside of 64kbit to 400gbit", text);
    *bits_out = (int64_t)bits;
    return LS_OK;
}

ls_status ls_lab_parse_bytes(const char *text, int64_t *bytes_out)
{
    static const unit units[] = {{"b", 1}, {"kb", 1024}, {"mb", 1048576}, {NULL, 0}};
    double bytes;

    if (!parse_unit(text, units, &bytes)) {
        ls_fail(LS_EUSAGE, "\"%.40s\" is no number of bytes", text);
        ls_err_hint("Write 256kb, 2mb, or auto.");
        return LS_EUSAGE;
    }
    if (!(bytes >= 2048 && bytes <= 1 << 30))
        return ls_fail(LS_EUSAGE, "the burst \"%.40s\" is outside of 2kb to 1024mb", text);
    *bytes_out = (int64_t)bytes;
    return LS_OK;
}

int64_t ls_lab_burst(int64_t bits)
{
    return ls_max_i64(ls_round_up(bits / 8 / BURSTS_PER_S, BURST_STEP), BURST_STEP);
}

/* --- commands --------------------------------------------------------------------------------- */

static void say_refusal(void *context, ls_spawn_stage stage, int error)
{
    (void)stage;
    dprintf(*(int *)context, "%s\n", strerror(error));
}

/* What a command said last, without its line end. */
static void last_said(int fd, char *said)
{
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > SAID - 1 ? end - (SAID - 1) : 0;
    ssize_t n = pread(fd, said, SAID - 1, from);

    said[n > 0 ? n : 0] = '\0';
    for (char *p = said; *p; p++)
        if (*p == '\n')
            *p = p[1] ? ';' : '\0';
}

static ls_status await(pid_t pid, const char *name, int64_t deadline_ns, int *status_out)
{
    pid_t got;

    while ((got = waitpid(pid, status_out, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (ls_time_now_ns() > deadline_ns) {
            kill(pid, SIGKILL);
            waitpid(pid, status_out, 0);
            return ls_fail(LS_EDEADLINE, "the command \"%s\" did not end in time", name);
        }
        usleep(500);
    }
    return LS_OK;
}

/* Feed lines of commands to ip or tc, inside of a namespace. */
static ls_status batch(ls_lab *lab, const char *path, int net_fd, const ls_str *lines)
{
    ls_status st = LS_OK;
    int in = memfd_create("lab-batch", MFD_CLOEXEC), said = memfd_create("lab-said", MFD_CLOEXEC);
    int *keep = ls_mem_array((size_t)lab->n + 1, sizeof *keep), status = 0;
    char file[32], text[SAID];

    LS_TRY(st, keep ? ls_str_status(lines) : LS_ENOMEM, out);
    if (in < 0 || said < 0) {
        st = ls_fail_sys(LS_EIO, "cannot make a file in memory");
        goto out;
    }
    LS_TRY(st, ls_file_write_all(in, lines->p, lines->len, "batch"), out);
    lseek(in, 0, SEEK_SET);
    keep[0] = in;
    for (int i = 0; i < lab->n; i++)
        keep[i + 1] = lab->nodes[i].net_fd;
    snprintf(file, sizeof file, "/proc/self/fd/%d", in);
    const char *words[] = {path, "-batch", file, NULL}, *env[] = {"LC_ALL=C", NULL};
    const ls_spawn spawn = {.path = path,
                            .argv = words,
                            .envp = env,
                            .out_fd = said,
                            .err_fd = said,
                            .keep = keep,
                            .n_keep = lab->n + 1,
                            .net_fd = net_fd};
    pid_t pid = ls_spawn_start(&spawn, say_refusal, &said);
    if (pid < 0) {
        st = ls_spawn_explain(&spawn, LS_SPAWN_FORK, errno);
        goto out;
    }
    LS_TRY(st, await(pid, path, lab->deadline_ns, &status), out);
    if (status != 0) {
        last_said(said, text);
        st = ls_fail(LS_EIO, "cannot set up the lab's network: %s says: %s", path, text);
        ls_err_hint("The kernel needs veth, bridge and sch_tbf.");
    }
out:
    if (in >= 0)
        close(in);
    if (said >= 0)
        close(said);
    ls_mem_free(keep);
    return st;
}

/* --- building --------------------------------------------------------------------------------- */

/* A network namespace that nothing but the descriptor holds. */
static ls_status make_net(int home_fd, int *fd_out)
{
    if (unshare(CLONE_NEWNET) != 0) {
        ls_fail_sys(LS_EIO, "cannot make a network namespace");
        if (errno == EPERM)
            ls_err_hint("Run it as root; in a container, with CAP_SYS_ADMIN and CAP_NET_ADMIN.");
        return LS_EIO;
    }
    *fd_out = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    int error = errno;
    if (setns(home_fd, CLONE_NEWNET) != 0)
        return ls_fail_sys(LS_EIO, "cannot return to our own network namespace");
    if (*fd_out < 0) {
        errno = error;
        return ls_fail_sys(LS_EIO, "cannot open a network namespace");
    }
    return LS_OK;
}

static ls_status make_nets(ls_lab *lab)
{
    ls_status st = LS_OK;
    int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);

    if (home < 0)
        return ls_fail_sys(LS_EIO, "cannot open our own network namespace");
    LS_TRY(st, make_net(home, &lab->switch_fd), out);
    for (int i = 0; i < lab->n; i++)
        LS_TRY(st, make_net(home, &lab->nodes[i].net_fd), out);
out:
    close(home);
    return st;
}

static void shape(const ls_lab *lab, const char *device, ls_str *lines)
{
    ls_str_printf(lines, "qdisc add dev %s root tbf rate %lldbit burst %lld latency 20ms\n", device,
                  (long long)lab->bits, (long long)lab->burst);
}

static ls_status build_switch(ls_lab *lab)
{
    ls_status st = LS_OK;
    ls_str lines;
    char port[16];

    ls_str_init(&lines);
    ls_str_append(&lines, "link add br0 type bridge\nlink set br0 addrgenmode none\n"
                          "link set br0 up\n");
    for (int i = 0; i < lab->n; i++)
        ls_str_printf(&lines,
                      "link add p%d type veth peer name eth0 netns /proc/self/fd/%d\n"
                      "link set p%d addrgenmode none\nlink set p%d master br0 up\n",
                      i, lab->nodes[i].net_fd, i, i);
    LS_TRY(st, batch(lab, lab->ip, lab->switch_fd, &lines), out);
    ls_str_clear(&lines);
    for (int i = 0; i < lab->n && lab->bits; i++) {
        snprintf(port, sizeof port, "p%d", i);
        shape(lab, port, &lines);
    }
    if (lab->bits)
        LS_TRY(st, batch(lab, lab->tc, lab->switch_fd, &lines), out);
out:
    ls_str_release(&lines);
    return st;
}

static ls_status build_node(ls_lab *lab, const node *n)
{
    ls_status st = LS_OK;
    ls_str lines;

    ls_str_init(&lines);
    ls_str_printf(&lines,
                  "link set lo up\nlink set eth0 addrgenmode none\n"
                  "addr add %s/16 dev eth0\nlink set eth0 up\n",
                  n->address);
    LS_TRY(st, batch(lab, lab->ip, n->net_fd, &lines), out);
    ls_str_clear(&lines);
    shape(lab, "eth0", &lines);
    if (lab->bits)
        LS_TRY(st, batch(lab, lab->tc, n->net_fd, &lines), out);
out:
    ls_str_release(&lines);
    return st;
}

static ls_status find_tool(const char *name, char *path_out)
{
    static const char *const folders[] = {"/usr/sbin", "/sbin"};

    if (ls_spawn_find(name, path_out, PATH_MAX) == LS_OK)
        return LS_OK;
    for (size_t i = 0; i < LS_COUNT(folders); i++) { /* often not in a user's PATH */
        snprintf(path_out, PATH_MAX, "%s/%s", folders[i], name);
        if (access(path_out, X_OK) == 0)
            return LS_OK;
    }
    ls_fail(LS_EIO, "the command \"%s\" is missing", name);
    ls_err_hint("It is in the package iproute2.");
    return LS_EIO;
}

static ls_status check(ls_lab *lab, const ls_lab_args *args)
{
    ls_status st = LS_OK;

    if (args->nodes < 1 || args->nodes > LS_LAB_NODES)
        return ls_fail(LS_EUSAGE, "a lab has 1 to %d hosts, not %d", LS_LAB_NODES, args->nodes);
    if (strcmp(args->link, "none") != 0)
        LS_TRY(st, ls_lab_parse_rate(args->link, &lab->bits), out);
    lab->burst = ls_lab_burst(lab->bits);
    if (strcmp(args->burst, "auto") != 0)
        LS_TRY(st, ls_lab_parse_bytes(args->burst, &lab->burst), out);
    LS_TRY(st, find_tool("ip", lab->ip), out);
    LS_TRY(st, find_tool("tc", lab->tc), out);
out:
    return st;
}

ls_status ls_lab_open(ls_lab **lab_out, const ls_lab_args *args, int64_t deadline_ns)
{
    ls_status st = LS_OK;
    ls_lab *lab = ls_mem_alloc(sizeof *lab);

    if (!lab)
        return LS_ENOMEM;
    lab->switch_fd = -1;
    lab->deadline_ns = deadline_ns;
    LS_TRY(st, check(lab, args), out);
    lab->nodes = ls_mem_array((size_t)args->nodes, sizeof *lab->nodes);
    LS_TRY(st, lab->nodes ? LS_OK : LS_ENOMEM, out);
    lab->n = args->nodes;
    for (int i = 0; i < lab->n; i++) {
        node *n = &lab->nodes[i];
        n->net_fd = -1;
        snprintf(n->host, sizeof n->host, "lab%d", i);
        snprintf(n->address, sizeof n->address, "10.77.%d.%d", i / PER_NET, i % PER_NET + 1);
    }
    LS_TRY(st, make_nets(lab), out);
    LS_TRY(st, build_switch(lab), out);
    for (int i = 0; i < lab->n; i++)
        LS_TRY(st, build_node(lab, &lab->nodes[i]), out);
    *lab_out = lab;
out:
    if (st != LS_OK)
        ls_lab_close(lab);
    return st;
}

void ls_lab_close(ls_lab *lab)
{
    if (!lab)
        return;
    for (int i = 0; i < lab->n; i++)
        if (lab->nodes[i].net_fd >= 0)
            close(lab->nodes[i].net_fd);
    if (lab->switch_fd >= 0)
        close(lab->switch_fd);
    ls_mem_free(lab->nodes);
    ls_mem_free(lab);
}

int ls_lab_net_fd(const ls_lab *lab, int i)
{
    return lab->nodes[i].net_fd;
}

const char *ls_lab_host(const ls_lab *lab, int i)
{
    return lab->nodes[i].host;
}

const char *ls_lab_address(const ls_lab *lab, int i)
{
    return lab->nodes[i].address;
}
