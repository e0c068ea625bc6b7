/* spawn.c -- from a plan to a running program.
 *
 * fork() and not posix_spawn(): the parent-death signal, a session, namespaces and CPUs have to be
 * set in the child. The order matters: the parent-death signal first, and after it a look whether
 * the parent is still there, since a parent that died before the call would never be noticed;
 * namespaces before descriptors are closed, because they come as descriptors; the limit of files
 * last, because a lower one must not hinder us. */
#include "cluster/node/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOT_STARTED = 127, MOST_FD = 65536 };
enum { FLAG_TREE_CLONE = 1, FLAG_RECURSIVE = 0x8000, FLAG_EMPTY_FROM = 4, FLAG_CLOEXEC = 4 };

/* --- in the child ----------------------------------------------------------------------------- */

static bool set_streams(const ls_spawn *spawn)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    return null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(spawn->out_fd, STDOUT_FILENO) >= 0 &&
           dup2(spawn->err_fd, STDERR_FILENO) >= 0;
}

/* /sys shows the devices of the network namespace in which it was mounted, so a host needs its own;
 * the control groups, which lie below it, are carried over. Without CAP_SYS_ADMIN, or on a kernel
 * before 5.2, the old one stays. */
static void mount_sys(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", NULL, MS_SLAVE | MS_REC, NULL) != 0)
        return;
    int groups = (int)syscall(SYS_open_tree, AT_FDCWD, "/sys/fs/cgroup",
                              FLAG_TREE_CLONE | FLAG_RECURSIVE | O_CLOEXEC);
    if (mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL) == 0 && groups >= 0)
        syscall(SYS_move_mount, groups, "", AT_FDCWD, "/sys/fs/cgroup", FLAG_EMPTY_FROM);
}

/* Everything above 2 is closed at exec, except what the plan keeps. */
static void close_files(void)
{
    if (syscall(SYS_close_range, 3u, ~0u, FLAG_CLOEXEC) != 0)
        for (int fd = 3; fd < MOST_FD; fd++)
            fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static bool keep_files(const ls_spawn *spawn)
{
    struct rlimit limit;

    close_files();
    for (int i = 0; i < spawn->n_keep; i++)
        if (fcntl(spawn->keep[i], F_SETFD, 0) != 0)
            return false;
    if (spawn->most_files && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = spawn->most_files;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return true;
}

static void reset_signals(void)
{
    sigset_t none;

    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void child(const ls_spawn *spawn, pid_t parent, ls_spawn_refuse refuse,
                            void *context)
{
    ls_spawn_stage stage = LS_SPAWN_STREAMS;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(NOT_STARTED);
    setsid();
    if (!set_streams(spawn))
        goto refused;
    stage = LS_SPAWN_NET;
    if (spawn->net_fd >= 0 && setns(spawn->net_fd, CLONE_NEWNET) != 0)
        goto refused;
    stage = LS_SPAWN_HOST;
    if (spawn->host &&
        (unshare(CLONE_NEWUTS) != 0 || sethostname(spawn->host, strlen(spawn->host)) != 0))
        goto refused;
    if (spawn->host)
        mount_sys();
    if (spawn->mask) /* refused masks change speed only */
        sched_setaffinity(0, sizeof spawn->mask->bits, (const cpu_set_t *)spawn->mask->bits);
    stage = LS_SPAWN_FILES;
    if (!keep_files(spawn))
        goto refused;
    reset_signals();
    stage = LS_SPAWN_EXEC;
    /* execve() takes pointers to non-const and changes nothing. */
    execve(spawn->path, (char *const *)(uintptr_t)spawn->argv,
           (char *const *)(uintptr_t)spawn->envp);
refused:
    if (refuse)
        refuse(context, stage, errno);
    _exit(NOT_STARTED);
}

pid_t ls_spawn_start(const ls_spawn *spawn, ls_spawn_refuse refuse, void *context)
{
    pid_t parent = getpid(), pid = fork();

    if (pid == 0)
        child(spawn, parent, refuse, context);
    return pid;
}

/* --- sentences -------------------------------------------------------------------------------- */

ls_status ls_spawn_explain(const ls_spawn *spawn, ls_spawn_stage stage, int error)
{
    static const char *const what[] = {
        [LS_SPAWN_FORK] = "no process can be made",
        [LS_SPAWN_STREAMS] = "its standard streams cannot be set",
        [LS_SPAWN_NET] = "its network namespace cannot be entered",
        [LS_SPAWN_HOST] = "its host name cannot be set",
        [LS_SPAWN_FILES] = "a descriptor that it should inherit is not open",
        [LS_SPAWN_EXEC] = "it cannot be executed",
    };

    errno = error;
    ls_fail_sys(stage == LS_SPAWN_EXEC ? LS_EUSAGE : LS_EIO, "cannot start \"%s\": %s",
                spawn->argv[0], what[stage]);
    if (stage == LS_SPAWN_FORK && error == EAGAIN)
        ls_err_hint("The limit of processes is reached (ulimit -u, or pids.max of a container).");
    else if (stage == LS_SPAWN_EXEC && error == ENOEXEC)
        ls_err_hint("A script must begin with the line that names its interpreter, such as "
                    "#!/bin/sh.");
    else if (stage == LS_SPAWN_EXEC && error == ENOENT)
        ls_err_hint("The interpreter in the first line of a script may be missing.");
    else if (error == EPERM)
        ls_err_hint("Run it as root.");
    return ls_err_last()->code;
}

/* 0: a file that can be executed; otherwise an errno. */
static int look_at(const char *path)
{
    struct stat info;

    if (stat(path, &info) != 0)
        return errno;
    if (S_ISDIR(info.st_mode))
        return EISDIR;
    return access(path, X_OK) == 0 ? 0 : errno;
}

static ls_status not_found(const char *name, const char *path, int error)
{
    if (error == EISDIR)
        return ls_fail(LS_EUSAGE, "the command \"%s\" is a folder", path);
    if (error == EACCES) {
        ls_fail(LS_EUSAGE, "the command \"%s\" may not be executed", path);
        ls_err_hint("`chmod +x` makes a file a command.");
        return LS_EUSAGE;
    }
    if (error != ENOENT) {
        errno = error;
        return ls_fail_sys(LS_EUSAGE, "cannot look at the command \"%s\"", path);
    }
    if (strchr(name, '/'))
        return ls_fail(LS_EUSAGE, "there is no command \"%s\"", name);
    ls_fail(LS_EUSAGE, "the command \"%s\" is not found in PATH", name);
    ls_err_hint("A program in this folder is written as ./%s.", name);
    return LS_EUSAGE;
}

/* As the shell does: an empty entry of PATH is this folder; a file that may not be executed is passed
 * over, and named if no other one is found. */
ls_status ls_spawn_find(const char *name, char *path_out, size_t cap)
{
    const char *list = getenv("PATH"), *p;
    char seen[PATH_MAX], path[PATH_MAX];
    int worst = ENOENT;

    if (!*name)
        return ls_fail(LS_EUSAGE, "the name of the command is empty");
    snprintf(seen, sizeof seen, "%s", name);
    if (strchr(name, '/')) {
        int error = strlen(name) < cap ? look_at(name) : ENAMETOOLONG;
        if (error)
            return not_found(name, name, error);
        snprintf(path_out, cap, "%s", name);
        return LS_OK;
    }
    for (p = list ? list : "/usr/local/bin:/usr/bin:/bin"; p; p = *p ? p + 1 : NULL) {
        int n = (int)strcspn(p, ":");
        const char *folder = p;
        p += n;
        n = snprintf(path, sizeof path, "%.*s%s%s", n, folder, n ? "/" : "./", name);
        int error = n < (int)sizeof path && (size_t)n < cap ? look_at(path) : ENAMETOOLONG;
        if (!error) {
            snprintf(path_out, cap, "%s", path);
            return LS_OK;
        }
        if (error == EACCES || error == EISDIR) { /* the shell would say so, too */
            worst = error;
            snprintf(seen, sizeof seen, "%s", path);
        }
    }
    return not_found(name, seen, worst);
}
