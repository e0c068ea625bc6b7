/* test_power.c -- power cuts. An ext4 file system lies in a file that is mounted by loop; a copy of
 * that file taken in the middle of a save holds exactly what the disk had been given by then, as a
 * power cut would leave it. Every copy must mount and hold the last checkpoint that was announced,
 * or a newer one, whole. */
#include "harness.h"
#include "sample.h"
#include "base/file.h"
#include "base/time.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/* How many images; bench/ckpt_faults.sh asks for more. */
static int images(void)
{
    const char *more = getenv("CKPT_ROUNDS");

    return more ? (int)strtol(more, NULL, 10) : 24;
}

/* Save for ever; the step is announced when save has returned. */
static void saver(sample *s, atomic_llong *announced)
{
    ls_ckpt_store *store = NULL;

    if (ls_ckpt_open(&store, "disk/c", true) != LS_OK)
        _exit(1);
    for (int64_t step = 1;; step++) {
        ls_ckpt_info info = sample_info(step);
        sample_fill(s, (uint32_t)step);
        if (ls_ckpt_save(store, &info, s->tensors, s->n, NULL) != LS_OK)
            _exit(2);
        atomic_store(announced, step);
        if (ls_ckpt_prune_by(store, &(ls_ckpt_pruning){.keep = 2}, NULL) != LS_OK)
            _exit(3);
    }
}

/* What the image holds. */
static int64_t step_in_image(sample *s)
{
    ls_ckpt_store *store = NULL;
    ls_ckpt_info info = {.step = 0};
    bool found = false;

    LS_CHECK_EQ(system("mount -o loop copy look"), 0);
    if (ls_file_is_dir("look/c")) {
        LS_CHECK_OK(ls_ckpt_open(&store, "look/c", false));
        LS_CHECK_OK(ls_ckpt_load_newest(store, s->tensors, s->n, &info, &found));
        LS_CHECK(!found || sample_is(s, (uint32_t)info.step));
        ls_ckpt_close(store);
    }
    LS_CHECK_EQ(system("umount look"), 0);
    return found ? info.step : 0;
}

LS_TEST_SECONDS(power_cut_leaves_the_last_announced_checkpoint, 300)
{
    sample s;
    int status;

    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        ls_test_skip("cannot mount file systems: %s", strerror(errno));
    if (system("mkdir ram && mount -t tmpfs -o size=64m none ram") != 0 || chdir("ram") != 0 ||
        system("truncate -s 8M image && PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q image && "
               "mkdir disk look && mount -o loop image disk") != 0)
        ls_test_skip("cannot make and mount an ext4 image");
    atomic_llong *announced =
        mmap(NULL, sizeof *announced, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    LS_CHECK(announced != MAP_FAILED);
    sample_make_tiny(&s);
    pid_t pid = fork();
    LS_CHECK(pid >= 0);
    if (pid == 0)
        saver(&s, announced);
    for (int i = 0, n = images(); i < n; i++) {
        usleep((useconds_t)(1000 + i * 1713 % 9000));
        int64_t least = atomic_load(announced);
        kill(pid, SIGSTOP); /* so that the copy shows one instant */
        LS_CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
        LS_CHECK(WIFSTOPPED(status));
        LS_CHECK_EQ(system("cp image copy"), 0);
        kill(pid, SIGCONT);
        int64_t step = step_in_image(&s);
        if (step < least)
            ls_test_fail(__FILE__, __LINE__, "step %lld was announced, the image has %lld",
                         (long long)least, (long long)step);
    }
    LS_CHECK(atomic_load(announced) > 2);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    /* The kernel lets go of what was being written a little after the writer is gone. */
    for (int64_t until = ls_test_soon(); system("umount disk 2>/dev/null") != 0; usleep(10000))
        LS_CHECK(ls_time_now_ns() < until);
    munmap(announced, sizeof *announced);
    sample_release(&s);
}
