/* test_file.c -- files that are missing, too long, half written, locked, or not files at all. */
#include "harness.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

static void check_holds(const char *path, const char *text)
{
    ls_str s;

    ls_str_init(&s);
    LS_CHECK_OK(ls_file_read(path, 1 << 20, &s));
    LS_CHECK_STR(s.p, text);
    ls_str_release(&s);
}

static int entries(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;

    LS_CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2; /* . and .. */
}

/* path_out: "aaaa...", too long for the system. */
static void make_long(char path_out[PATH_MAX + 100], size_t len)
{
    memset(path_out, 'a', len);
    path_out[len] = '\0';
}

LS_TEST(file_read_appends_whole_files)
{
    ls_str s;
    char *big = ls_mem_alloc(200001);

    LS_CHECK(big);
    memset(big, 'x', 200000);
    put("big", big);
    put("empty", "");
    ls_str_init(&s);
    LS_CHECK_OK(ls_file_read("empty", 0, &s));
    LS_CHECK_EQ(s.len, 0);
    ls_str_append(&s, "before ");
    LS_CHECK_OK(ls_file_read("big", 200000, &s)); /* exactly at the limit */
    LS_CHECK_EQ(s.len, 200007);
    LS_CHECK(memcmp(s.p, "before xxx", 10) == 0);
    LS_CHECK_EQ(s.p[200006], 'x');
    ls_str_release(&s);
    ls_mem_free(big);
}

LS_TEST(file_read_refuses_and_leaves_the_output_alone)
{
    ls_str s;
    char path[PATH_MAX + 100];

    ls_str_init(&s);
    ls_str_append(&s, "kept");
    put("ten", "0123456789");
    LS_CHECK_FAILS(ls_file_read("ten", 9, &s), LS_EDATA, "\"ten\" is longer than 9 bytes");
    LS_CHECK_FAILS(ls_file_read("none", 9, &s), LS_EIO, "\"none\": No such file");
    LS_CHECK_FAILS(ls_file_read(".", 9, &s), LS_EIO, "\".\": it is a folder");
    LS_CHECK_FAILS(ls_file_read("", 9, &s), LS_EIO, "No such file");
    LS_CHECK_FAILS(ls_file_read("ten/below", 9, &s), LS_EIO, "Not a directory");
    make_long(path, 300);
    LS_CHECK_FAILS(ls_file_read(path, 9, &s), LS_EIO, "File name too long");
    make_long(path, PATH_MAX + 50);
    LS_CHECK_FAILS(ls_file_read(path, 9, &s), LS_EIO, "File name too long");
    LS_CHECK_FAILS(ls_file_read("/dev/zero", 100000, &s), LS_EIO, "it is a device");
    LS_CHECK_EQ(mkfifo("pipe", 0600), 0);
    LS_CHECK_FAILS(ls_file_read("pipe", 9, &s), LS_EIO, "it is a pipe"); /* and at once */
    LS_CHECK(strstr(ls_err_last()->hint, "to a file"));
    LS_CHECK_STR(s.p, "kept");
    LS_CHECK_EQ(s.len, 4);
    ls_str_release(&s);
}

LS_TEST(file_read_of_standard_input)
{
    int ends[2];
    ls_str s;

    ls_str_init(&s);
    LS_CHECK_EQ(pipe(ends), 0);
    LS_CHECK_EQ(write(ends[1], "through a pipe", 14), 14);
    close(ends[1]);
    LS_CHECK_EQ(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    LS_CHECK_OK(ls_file_read_stdin(14, &s));
    LS_CHECK_STR(s.p, "through a pipe");
    LS_CHECK_EQ(dup2(open("/dev/zero", O_RDONLY | O_CLOEXEC), STDIN_FILENO), STDIN_FILENO);
    LS_CHECK_FAILS(ls_file_read_stdin(100000, &s), LS_EDATA, "\"standard input\" is longer than");
    LS_CHECK_STR(s.p, "through a pipe");
    close(ends[0]);
    ls_str_release(&s);
}

LS_TEST(file_append_does_not_write_through_a_link)
{
    int fd = -1;

    put("target", "as it was\n");
    LS_CHECK_EQ(symlink("target", "link"), 0);
    LS_CHECK_EQ(symlink("nowhere", "dangling"), 0);
    LS_CHECK_EQ(mkfifo("pipe", 0600), 0);
    LS_CHECK_FAILS(ls_file_open_append("link", 0644, &fd), LS_EIO, "\"link\" is a symbolic link");
    LS_CHECK(*ls_err_last()->hint);
    LS_CHECK_FAILS(ls_file_open_append("dangling", 0644, &fd), LS_EIO, "symbolic link");
    LS_CHECK_FAILS(ls_file_lock("link", &fd), LS_EIO, "\"link\" is a symbolic link");
    LS_CHECK_FAILS(ls_file_open_append("pipe", 0644, &fd), LS_EIO, "cannot write \"pipe\"");
    LS_CHECK_FAILS(ls_file_refuse_link("dangling"), LS_EIO, "symbolic link");
    LS_CHECK_EQ(fd, -1);
    check_holds("target", "as it was\n");
    LS_CHECK(!ls_file_exists("nowhere"));

    LS_CHECK_OK(ls_file_refuse_link("target"));
    LS_CHECK_OK(ls_file_refuse_link("none"));
    LS_CHECK_OK(ls_file_open_append("target", 0644, &fd));
    LS_CHECK_OK(ls_file_write_all(fd, "and more\n", 9, "target"));
    close(fd);
    check_holds("target", "as it was\nand more\n");
}

LS_TEST(file_sweep_removes_what_dead_writers_left)
{
    char dead[64], alive[64], own[64];
    pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    LS_CHECK_EQ(waitpid(pid, NULL, 0), pid); /* nobody has this number now */
    snprintf(dead, sizeof dead, "generation.tmp.%d", (int)pid);
    snprintf(alive, sizeof alive, "generation.tmp.%d", (int)getppid());
    snprintf(own, sizeof own, ".seen-5.tmp.%d", (int)getpid()); /* of one that had our number */
    put(dead, "half");
    put(alive, "half");
    put(own, "");
    put("generation", "1");
    put("notes.tmp.txt", "mine");
    put("x.tmp.", "mine");
    put("y.tmp.99999999999999", "mine");
    LS_CHECK_EQ(symlink("generation", "link.tmp.999999999"), 0);
    ls_file_sweep_temps(".");
    LS_CHECK(!ls_file_exists(dead) && !ls_file_exists(own));
    LS_CHECK(ls_file_exists(alive) && ls_file_exists("generation"));
    LS_CHECK(ls_file_exists("notes.tmp.txt") && ls_file_exists("x.tmp."));
    LS_CHECK(ls_file_exists("y.tmp.99999999999999") && ls_file_exists("link.tmp.999999999"));
    ls_file_sweep_temps("nowhere");
}

LS_TEST(file_read_out_of_memory)
{
    ls_str s;

    put("f", "text");
    ls_str_init(&s);
    ls_mem_fail_nth(1);
    LS_CHECK_FAILS(ls_file_read("f", 100, &s), LS_ENOMEM, "cannot grow");
    ls_str_clear(&s);
    LS_CHECK_OK(ls_file_read("f", 100, &s));
    LS_CHECK_STR(s.p, "text");
    ls_str_release(&s);
}

LS_TEST(file_map_sees_the_bytes)
{
    ls_file_map map;

    put("f", "mapped");
    LS_CHECK_OK(ls_file_map_open(&map, "f"));
    LS_CHECK_EQ(map.len, 6);
    LS_CHECK(memcmp(map.bytes, "mapped", 6) == 0);
    ls_file_map_close(&map);
    LS_CHECK(!map.bytes && map.len == 0);
    ls_file_map_close(&map); /* twice is fine */

    put("empty", "");
    LS_CHECK_OK(ls_file_map_open(&map, "empty"));
    LS_CHECK(map.bytes && map.len == 0);
    ls_file_map_close(&map);
}

LS_TEST(file_map_refuses_what_is_not_a_plain_file)
{
    ls_file_map map = {.len = 77};

    LS_CHECK_FAILS(ls_file_map_open(&map, "none"), LS_EIO, "cannot open \"none\"");
    LS_CHECK(!map.bytes && map.len == 0);
    LS_CHECK_FAILS(ls_file_map_open(&map, "."), LS_EIO, "it is a folder");
    LS_CHECK_FAILS(ls_file_map_open(&map, "/dev/null"), LS_EIO, "not a plain file");
    LS_CHECK_EQ(mkfifo("pipe", 0600), 0);
    LS_CHECK_FAILS(ls_file_map_open(&map, "pipe"), LS_EIO, "not a plain file"); /* and at once */
    ls_file_map_close(&map);
}

LS_TEST(file_atomic_write_replaces_the_whole_file)
{
    put("f", "a long first text");
    put("f", "short");
    check_holds("f", "short");
    put("f", "");
    check_holds("f", "");
    LS_CHECK_EQ(entries("."), 1);
    LS_CHECK_EQ(mkdir("d", 0755), 0);
    put("d/g", "in a folder");
    check_holds("d/g", "in a folder");
}

LS_TEST(file_atomic_write_under_a_fault_leaves_the_old_file_alone)
{
    for (int turn = 1; turn <= 3; turn++) { /* the write that fails */
        char plan[32], kept[16] = "old";
        put("f", "old");
        snprintf(plan, sizeof plan, "file.write@%d", turn);
        ls_fault_arm(plan);
        for (int i = 1; i <= 4; i++) {
            char text[16];
            snprintf(text, sizeof text, "new %d", i);
            if (i == turn) {
                LS_CHECK_FAILS(ls_file_write_atomic("f", text, strlen(text)), LS_EIO,
                               "cannot write \"f\": No space left on device");
                LS_CHECK(strstr(ls_err_last()->hint, "Free some space"));
            } else {
                put("f", text);
                memcpy(kept, text, sizeof kept);
            }
            check_holds("f", kept);
            LS_CHECK_EQ(entries("."), 1); /* no temporary file is left */
        }
    }
}

/* A full disk in the middle of a long write, made by a limit on the file's size. */
LS_TEST(file_atomic_write_that_runs_full_midway)
{
    enum { BYTES = 1 << 20 };
    struct rlimit limit = {100000, 100000};
    char *bytes = ls_mem_alloc(BYTES);

    LS_CHECK(bytes);
    put("f", "old");
    signal(SIGXFSZ, SIG_IGN);
    LS_CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    LS_CHECK_FAILS(ls_file_write_atomic("f", bytes, BYTES), LS_EIO, "cannot write \"f\"");
    check_holds("f", "old");
    LS_CHECK_EQ(entries("."), 1);
    ls_mem_free(bytes);
}

/* kill -9 at the write: the old text stays, and the next writer is not disturbed. */
LS_TEST(file_atomic_write_killed_midway)
{
    int status;

    put("f", "old");
    pid_t pid = fork();
    if (pid == 0) {
        ls_fault_arm("file.write=kill");
        ls_file_write_atomic("f", "new", 3);
        _exit(0);
    }
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFSIGNALED(status));
    check_holds("f", "old");
    put("f", "newer");
    check_holds("f", "newer");
}

LS_TEST(file_atomic_write_refusals_name_the_path)
{
    char path[PATH_MAX + 100];

    LS_CHECK_FAILS(ls_file_write_atomic("no/such/f", "x", 1), LS_EIO, "\"no/such/f");
    LS_CHECK_EQ(mkdir("d", 0755), 0);
    LS_CHECK_FAILS(ls_file_write_atomic("d", "x", 1), LS_EIO, "to \"d\": Is a directory");
    LS_CHECK_EQ(entries("."), 1);
    make_long(path, PATH_MAX + 50);
    LS_CHECK_FAILS(ls_file_write_atomic(path, "x", 1), LS_EIO, "the path is too long");
    make_long(path, 255); /* legal as a name, but not with the temporary ending */
    LS_CHECK_FAILS(ls_file_write_atomic(path, "x", 1), LS_EIO, "File name too long");
    LS_CHECK_FAILS(ls_file_write_atomic("/proc/none", "x", 1), LS_EIO, "/proc/none");
}

/* A user who can write to the folder must not make us write through links. */
LS_TEST(file_writes_follow_no_links)
{
    char temp[64];
    ls_str text;
    int fd = -1;

    ls_str_init(&text);
    LS_CHECK_OK(ls_file_write_atomic("precious", "p", 1));
    snprintf(temp, sizeof temp, "x.tmp.%d", (int)getpid());
    LS_CHECK_EQ(symlink("precious", temp), 0);
    LS_CHECK_FAILS(ls_file_write_atomic("x", "other", 5), LS_EIO, temp);
    LS_CHECK_EQ(symlink("precious", "lock"), 0);
    LS_CHECK_FAILS(ls_file_lock("lock", &fd), LS_EIO, "lock");
    LS_CHECK_EQ(unlink("lock"), 0);
    /* a link in the place of the file itself is replaced, not followed */
    LS_CHECK_EQ(symlink("precious", "y"), 0);
    LS_CHECK_OK(ls_file_write_atomic("y", "new", 3));
    LS_CHECK_OK(ls_file_read("precious", 64, &text));
    LS_CHECK_STR(text.p, "p");
    ls_str_release(&text);
}

LS_TEST(file_write_all_names_a_full_device)
{
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    LS_CHECK(fd >= 0);
    LS_CHECK_FAILS(ls_file_write_all(fd, "x", 1, "out/log"), LS_EIO,
                   "cannot write \"out/log\": No space left on device");
    LS_CHECK(ls_err_last()->hint[0]);
    LS_CHECK_OK(ls_file_write_all(fd, NULL, 0, "out/log"));
    close(fd);
}

LS_TEST(file_make_dirs_makes_what_is_missing)
{
    char path[PATH_MAX + 100], absolute[PATH_MAX + 10];

    LS_CHECK_OK(ls_file_make_dirs("a/b//c/"));
    LS_CHECK(ls_file_is_dir("a/b/c"));
    LS_CHECK_OK(ls_file_make_dirs("a/b/c"));
    LS_CHECK_OK(ls_file_make_dirs("."));
    LS_CHECK_OK(ls_file_make_dirs("/"));
    LS_CHECK(getcwd(path, PATH_MAX));
    snprintf(absolute, sizeof absolute, "%.*s/x/y", PATH_MAX - 10, path);
    LS_CHECK_OK(ls_file_make_dirs(absolute));
    LS_CHECK(ls_file_is_dir("x/y"));

    put("f", "");
    LS_CHECK_FAILS(ls_file_make_dirs("f"), LS_EIO, "a file of that name exists");
    LS_CHECK_FAILS(ls_file_make_dirs("f/g"), LS_EIO, "\"f/g\": Not a directory");
    LS_CHECK_FAILS(ls_file_make_dirs(""), LS_EIO, "empty or too long");
    make_long(path, 300);
    LS_CHECK_FAILS(ls_file_make_dirs(path), LS_EIO, "File name too long");
    make_long(path, PATH_MAX + 50);
    LS_CHECK_FAILS(ls_file_make_dirs(path), LS_EIO, "empty or too long");
}

LS_TEST(file_exists_tells_files_from_folders)
{
    put("f", "");
    LS_CHECK(ls_file_exists("f") && !ls_file_is_dir("f"));
    LS_CHECK(ls_file_exists(".") && ls_file_is_dir("."));
    LS_CHECK(!ls_file_exists("none") && !ls_file_is_dir("none"));
    LS_CHECK(!ls_file_exists(""));
    LS_CHECK_EQ(symlink("nowhere", "dangling"), 0);
    LS_CHECK(!ls_file_exists("dangling"));
}

LS_TEST(file_sync_dir_wants_a_folder)
{
    put("f", "");
    LS_CHECK_OK(ls_file_sync_dir("."));
    LS_CHECK_FAILS(ls_file_sync_dir("f"), LS_EIO, "cannot open folder \"f\"");
    LS_CHECK_FAILS(ls_file_sync_dir("none"), LS_EIO, "cannot open folder \"none\"");
}

LS_TEST(file_free_bytes_of_places_that_do_not_exist_yet)
{
    static const char *const paths[] = {
        ".",       "none",     "none/deep/er", "/none/deep",  "/",       "",
        "f/below", "./none/x", "none/../x",    "/dev/shm/no", "a//b//c/"};
    char path[PATH_MAX + 100];
    int64_t free_bytes;

    put("f", "");
    for (size_t i = 0; i < LS_COUNT(paths); i++) {
        free_bytes = -1;
        LS_CHECK_OK(ls_file_free_bytes(paths[i], &free_bytes));
        LS_CHECK(free_bytes >= 0);
    }
    make_long(path, PATH_MAX + 50);
    LS_CHECK_FAILS(ls_file_free_bytes(path, &free_bytes), LS_EIO, "too long");
    make_long(path, 300);
    LS_CHECK_FAILS(ls_file_free_bytes(path, &free_bytes), LS_EIO, "cannot ask for the free space");
}

/* A child takes the lock, says so through the pipe, and holds it until it is killed. */
static pid_t lock_elsewhere(const char *path)
{
    int ends[2];
    char byte = 0;

    LS_CHECK_EQ(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd;
        byte = ls_file_lock(path, &fd) == LS_OK ? 'y' : 'n';
        if (write(ends[1], &byte, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    LS_CHECK_EQ(read(ends[0], &byte, 1), 1);
    LS_CHECK_EQ(byte, 'y');
    close(ends[0]);
    close(ends[1]);
    return pid;
}

LS_TEST(file_lock_refuses_the_second_and_ends_with_kill_9)
{
    char holder[64];
    int fd = -1, status;
    pid_t pid = lock_elsewhere("lock");

    snprintf(holder, sizeof holder, "held by another process (pid %d on ", (int)pid);
    LS_CHECK_FAILS(ls_file_lock("lock", &fd), LS_EBUSY, holder);
    LS_CHECK_FAILS(ls_file_lock("lock", &fd), LS_EBUSY, holder); /* asking does no harm */
    LS_CHECK_EQ(fd, -1);
    kill(pid, SIGKILL);
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK_OK(ls_file_lock("lock", &fd));
    ls_file_unlock(fd);
}

LS_TEST(file_lock_twice_in_one_process_and_after_unlock)
{
    int fd, again = -1;

    LS_CHECK_OK(ls_file_lock("lock", &fd));
    LS_CHECK_FAILS(ls_file_lock("lock", &again), LS_EBUSY, "\"lock\" is held");
    ls_file_unlock(fd);
    ls_file_unlock(-1);
    LS_CHECK_OK(ls_file_lock("lock", &again));
    ls_file_unlock(again);
}

LS_TEST(file_lock_that_the_system_cannot_give_is_not_called_busy)
{
    int fd = -1;

    LS_CHECK_FAILS(ls_file_lock("no/such/lock", &fd), LS_EIO, "cannot open lock");
    LS_CHECK_FAILS(ls_file_lock(".", &fd), LS_EIO, "cannot open lock \".\"");
    ls_fault_arm("file.lock"); /* as a network file system without locks does */
    LS_CHECK_FAILS(ls_file_lock("lock", &fd), LS_EIO, "cannot lock \"lock\": No locks available");
    LS_CHECK_EQ(fd, -1);
}

LS_TEST(file_glob_lists_in_order)
{
    ls_str names;
    int count = -1;

    put("b.txt", "");
    put("a.txt", "");
    put("c.dat", "");
    put(".hidden.txt", "");
    ls_str_init(&names);
    LS_CHECK_OK(ls_file_glob("*.txt", &names, &count));
    LS_CHECK_EQ(count, 2);
    LS_CHECK_EQ(names.len, 12);
    LS_CHECK(memcmp(names.p, "a.txt\0b.txt\0", 12) == 0);
    ls_str_clear(&names);
    LS_CHECK_OK(ls_file_glob("c.dat", &names, &count)); /* no pattern at all */
    LS_CHECK_EQ(count, 1);
    LS_CHECK_STR(names.p, "c.dat");
    ls_str_release(&names);
}

LS_TEST(file_glob_without_a_match_or_memory)
{
    ls_str names;
    int count = -1;

    ls_str_init(&names);
    LS_CHECK_FAILS(ls_file_glob("*.none", &names, &count), LS_EIO, "no file matches \"*.none\"");
    LS_CHECK_FAILS(ls_file_glob("", &names, &count), LS_EIO, "no file matches \"\"");
    LS_CHECK_FAILS(ls_file_glob("[", &names, &count), LS_EIO, "no file matches \"[\"");
    put("f", "");
    ls_mem_fail_nth(1);
    LS_CHECK_FAILS(ls_file_glob("f", &names, &count), LS_ENOMEM, "cannot grow");
    LS_CHECK_EQ(count, -1);
    ls_str_release(&names);
}
