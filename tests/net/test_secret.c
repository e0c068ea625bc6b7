/* test_secret.c -- a secret is made once, read only when nobody else can read it, and wiped. */
#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "net/secret.h"

static void write_file(const char *path, size_t len, mode_t mode)
{
    char bytes[64] = "0123456789abcdef0123456789abcdef0123456789abcdef";
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    LS_CHECK(fd >= 0);
    LS_CHECK(write(fd, bytes, len) == (ssize_t)len);
    LS_CHECK(fchmod(fd, mode) == 0);
    close(fd);
}

LS_TEST(secret_is_made_and_read)
{
    ls_secret a, b, c;
    struct stat info;

    umask(0);
    LS_CHECK_OK(ls_secret_make("one"));
    LS_CHECK_OK(ls_secret_make("two"));
    LS_CHECK(stat("one", &info) == 0 && info.st_size == 32 && (info.st_mode & 07777) == 0600);
    LS_CHECK_OK(ls_secret_read(&a, "one"));
    LS_CHECK_OK(ls_secret_read(&b, "one"));
    LS_CHECK_OK(ls_secret_read(&c, "two"));
    LS_CHECK(memcmp(a.bytes, b.bytes, LS_SECRET_BYTES) == 0);
    LS_CHECK(memcmp(a.bytes, c.bytes, LS_SECRET_BYTES) != 0);
    ls_secret_release(&b);
    LS_CHECK_OK(ls_secret_hold(&b, c.bytes));
    LS_CHECK(memcmp(b.bytes, c.bytes, LS_SECRET_BYTES) == 0);
    ls_secret_release(&a);
    ls_secret_release(&a);
    ls_secret_release(&b);
    ls_secret_release(&c);
    LS_CHECK_FAILS(ls_secret_make("one"), LS_EBUSY, "\"one\"");
    LS_CHECK_FAILS(ls_secret_make("no/such/folder"), LS_EIO, "no/such/folder");
}

LS_TEST(secret_that_others_may_know_is_refused)
{
    ls_secret s;

    write_file("open", 32, 0640);
    LS_CHECK_FAILS(ls_secret_read(&s, "open"), LS_EUSAGE, "mode 0640");
    write_file("world", 32, 0604);
    LS_CHECK_FAILS(ls_secret_read(&s, "world"), LS_EUSAGE, "can be read by others");
    write_file("short", 31, 0600);
    LS_CHECK_FAILS(ls_secret_read(&s, "short"), LS_EDATA, "31 bytes");
    write_file("long", 33, 0600);
    LS_CHECK_FAILS(ls_secret_read(&s, "long"), LS_EDATA, "33 bytes");
    write_file("good", 32, 0600);
    LS_CHECK(symlink("good", "link") == 0);
    LS_CHECK_FAILS(ls_secret_read(&s, "link"), LS_EUSAGE, "is a link");
    LS_CHECK(mkdir("folder", 0700) == 0);
    LS_CHECK_FAILS(ls_secret_read(&s, "folder"), LS_EUSAGE, "not a plain file");
    LS_CHECK(mkfifo("pipe", 0600) == 0); /* must not wait for a writer */
    LS_CHECK_FAILS(ls_secret_read(&s, "pipe"), LS_EUSAGE, "not a plain file");
    LS_CHECK_FAILS(ls_secret_read(&s, "none"), LS_EIO, "\"none\"");
    if (geteuid() == 0) {
        LS_CHECK(chown("good", 12345, (gid_t)-1) == 0);
        LS_CHECK_FAILS(ls_secret_read(&s, "good"), LS_EUSAGE, "belongs to user 12345");
    }
}

LS_TEST(secret_comes_through_a_descriptor)
{
    ls_secret s;
    int ends[2];

    for (int len = 31; len <= 33; len++) {
        LS_CHECK(pipe(ends) == 0);
        LS_CHECK(write(ends[1], "0123456789abcdef0123456789abcdef!", (size_t)len) == len);
        close(ends[1]);
        if (len == 32) {
            LS_CHECK_OK(ls_secret_read_fd(&s, ends[0]));
            LS_CHECK(memcmp(s.bytes, "0123456789abcdef0123456789abcdef", 32) == 0);
            ls_secret_release(&s);
        } else {
            LS_CHECK_FAILS(ls_secret_read_fd(&s, ends[0]), LS_EDATA, "does not have 32 bytes");
        }
        close(ends[0]);
    }
}

/* The page is marked "do not dump" (dd) in the kernel's list of mappings. */
LS_TEST(secret_is_not_in_core_files)
{
    uint8_t bytes[LS_SECRET_BYTES] = {1};
    char line[512], want[32];
    bool here = false, marked = false;
    ls_secret s;
    FILE *maps = fopen("/proc/self/smaps", "re");

    LS_CHECK_OK(ls_secret_hold(&s, bytes));
    snprintf(want, sizeof want, "%lx-", (unsigned long)(uintptr_t)s.bytes);
    LS_CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        if (strncmp(line, want, strlen(want)) == 0)
            here = true;
        if (here && strncmp(line, "VmFlags:", 8) == 0) {
            marked = strstr(line, " dd") != NULL;
            break;
        }
    }
    fclose(maps);
    if (!here)
        ls_test_skip("the kernel joined the page with its neighbours in the list");
    LS_CHECK(marked);
    ls_secret_release(&s);
}
