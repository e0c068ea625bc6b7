/* members.c -- a list and its bytes.
 *
 *   generation 8, master port 2, nodes 2, then for each node: ranks 2, host, ip, a port of 2 for
 *   each rank. Texts have their length (2) in front. */
#include "cluster/members.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "cluster/parcel.h"

enum { MOST_BYTES = 1 << 20 };

void ls_members_init(ls_members *members)
{
    *members = (ls_members){.generation = 0};
}

void ls_members_release(ls_members *members)
{
    ls_mem_free(members->node);
    ls_mem_free(members->ports);
    ls_members_init(members);
}

ls_status ls_members_add(ls_members *m, const char *host, const char *ip, int ranks,
                         const uint16_t *ports)
{
    if (ranks < 1 || m->nodes >= LS_MEMBERS_NODES || ranks > LS_MEMBERS_RANKS - m->ranks)
        return ls_fail(LS_EUSAGE,
                       "%d ranks on \"%s\" do not fit: a job has at most %d nodes and %d "
                       "ranks",
                       ranks, host, LS_MEMBERS_NODES, LS_MEMBERS_RANKS);
    ls_members_node *node = ls_mem_resize(m->node, (size_t)(m->nodes + 1) * sizeof *node);
    if (!node)
        return LS_ENOMEM;
    m->node = node;
    uint16_t *all = ls_mem_resize(m->ports, (size_t)(m->ranks + ranks) * sizeof *all);
    if (!all)
        return LS_ENOMEM;
    m->ports = all;
    for (int i = 0; i < ranks; i++)
        all[m->ranks + i] = ports ? ports[i] : 0;
    node = &m->node[m->nodes++];
    *node = (ls_members_node){.first_rank = m->ranks, .ranks = ranks};
    snprintf(node->host, sizeof node->host, "%s", host);
    snprintf(node->ip, sizeof node->ip, "%s", ip);
    m->ranks += ranks;
    return LS_OK;
}

int ls_members_node_of(const ls_members *m, int rank)
{
    LS_BUG_IF(rank < 0 || rank >= m->ranks, "rank %d of %d", rank, m->ranks);
    for (int i = m->nodes - 1; i > 0; i--)
        if (m->node[i].first_rank <= rank)
            return i;
    return 0;
}

void ls_members_address(const ls_members *m, int rank, char *text_out, size_t cap)
{
    const ls_members_node *node = &m->node[ls_members_node_of(m, rank)];

    if (strchr(node->ip, ':'))
        snprintf(text_out, cap, "[%s]:%d", node->ip, m->ports[rank]);
    else
        snprintf(text_out, cap, "%s:%d", node->ip, m->ports[rank]);
}

/* --- bytes ------------------------------------------------------------------------------------ */

void ls_members_encode(const ls_members *m, ls_str *out)
{
    ls_parcel_put(out, m->generation, 8);
    ls_parcel_put(out, (uint64_t)m->master_port, 2);
    ls_parcel_put(out, (uint64_t)m->nodes, 2);
    for (int i = 0; i < m->nodes; i++) {
        const ls_members_node *node = &m->node[i];
        ls_parcel_put(out, (uint64_t)node->ranks, 2);
        ls_parcel_put_text(out, node->host);
        ls_parcel_put_text(out, node->ip);
        for (int r = 0; r < node->ranks; r++)
            ls_parcel_put(out, m->ports[node->first_rank + r], 2);
    }
}

static ls_status decode_node(ls_members *m, ls_parcel *in)
{
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    int ranks = (int)ls_parcel_get(in, 2);

    ls_parcel_get_text(in, host, sizeof host);
    ls_parcel_get_text(in, ip, sizeof ip);
    if (in->bad || !*ip || ranks < 1 || in->left < 2 * (size_t)ranks) {
        in->bad = true;
        return LS_OK;
    }
    ls_status st = ls_members_add(m, host, ip, ranks, NULL);
    for (int r = 0; st == LS_OK && r < ranks; r++)
        m->ports[m->ranks - ranks + r] = (uint16_t)ls_parcel_get(in, 2);
    return st;
}

ls_status ls_members_decode(ls_members *m, const void *bytes, size_t len)
{
    ls_status st = LS_OK;
    ls_parcel in = {.at = bytes, .left = len};

    ls_members_init(m);
    m->generation = ls_parcel_get(&in, 8);
    m->master_port = (int)ls_parcel_get(&in, 2);
    int nodes = (int)ls_parcel_get(&in, 2);
    for (int i = 0; i < nodes && !in.bad; i++)
        LS_TRY(st, decode_node(m, &in), out);
    if (!ls_parcel_done(&in) || nodes < 1)
        st = ls_fail(LS_EDATA, "a list of members is damaged");
out:
    if (st == LS_EUSAGE) /* beyond the limits: nobody sends that */
        st = ls_fail(LS_EDATA, "a list of members is damaged");
    if (st != LS_OK)
        ls_members_release(m);
    return st;
}

ls_status ls_members_to_fd(const ls_members *m, int *fd_out)
{
    ls_status st = LS_OK;
    ls_str bytes;
    int fd = memfd_create("members", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ls_str_init(&bytes);
    if (fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot make a file in memory for the list of members");
        goto out;
    }
    ls_members_encode(m, &bytes);
    LS_TRY(st, ls_str_status(&bytes), out);
    LS_TRY(st, ls_file_write_all(fd, bytes.p, bytes.len, "members"), out);
    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    *fd_out = fd;
    fd = -1;
out:
    if (fd >= 0)
        close(fd);
    ls_str_release(&bytes);
    return st;
}

ls_status ls_members_from_fd(ls_members *m, int fd)
{
    struct stat info;

    ls_members_init(m);
    if (fstat(fd, &info) != 0)
        return ls_fail_sys(LS_EIO, "cannot read the list of members");
    if (info.st_size < 1 || info.st_size > MOST_BYTES)
        return ls_fail(LS_EDATA, "a list of members of %lld bytes", (long long)info.st_size);
    size_t len = (size_t)info.st_size;
    uint8_t *bytes = ls_mem_alloc(len);
    if (!bytes)
        return LS_ENOMEM;
    ssize_t n = pread(fd, bytes, len, 0); /* workers share the position */
    ls_status st = n == (ssize_t)len ? ls_members_decode(m, bytes, len)
                                     : ls_fail_sys(LS_EIO, "cannot read the list of members");
    ls_mem_free(bytes);
    return st;
}
