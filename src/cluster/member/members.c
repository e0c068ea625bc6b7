/* members.c -- a list of nodes and its bytes:
 *
 *   generation 8, master port 2, number of nodes 4
 *   names: their length 4, then names and addresses as roster.h writes them
 *   ranks: pairs (number of nodes, ranks of each), until all nodes are counted
 *   whether there are ports 1; then a port of 2 for each rank
 *
 * 10,000 nodes take 100 KB, because neighbours have most of their names in common. */
#include "cluster/member/members.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "cluster/member/growing_array.h"
#include "cluster/member/roster.h"

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

/* Ranks are numbered through: with nodes of 4, 2 and 2 ranks the third one begins at rank 6, and its
 * ports are ports[6] and ports[7]. */
ls_status ls_members_add(ls_members *m, const char *host, const char *ip, int ranks,
                         const uint16_t *ports)
{
    if (ranks < 1 || m->nodes >= LS_MEMBERS_NODES || ranks > LS_MEMBERS_RANKS - m->ranks)
        return ls_fail(LS_EUSAGE,
                       "%d ranks on \"%s\" do not fit: a job has at most %d nodes and %d "
                       "ranks",
                       ranks, host, LS_MEMBERS_NODES, LS_MEMBERS_RANKS);
    if (!ls_growing_array_add((void **)&m->node, m->nodes, &m->nodes_room, sizeof *m->node))
        return LS_ENOMEM;
    for (int i = 0; i < ranks; i++) {
        if (!ls_growing_array_add((void **)&m->ports, m->ranks + i, &m->ports_room,
                                  sizeof *m->ports))
            return LS_ENOMEM;
        m->ports[m->ranks + i] = ports ? ports[i] : 0;
    }
    ls_members_node *node = &m->node[m->nodes++];
    *node = (ls_members_node){.first_rank = m->ranks, .ranks = ranks};
    snprintf(node->host, sizeof node->host, "%s", host);
    snprintf(node->ip, sizeof node->ip, "%s", ip);
    m->ranks += ranks;
    return LS_OK;
}

int ls_members_node_of(const ls_members *m, int rank)
{
    LS_BUG_IF(rank < 0 || rank >= m->ranks, "rank %d of %d", rank, m->ranks);
    int first = 0, last = m->nodes - 1;
    while (first < last) { /* the last node that begins at or before it */
        int middle = last - (last - first) / 2;
        if (m->node[middle].first_rank <= rank)
            first = middle;
        else
            last = middle - 1;
    }
    return first;
}

void ls_members_format(const char *ip, int port, char *text_out, size_t cap)
{
    snprintf(text_out, cap, strchr(ip, ':') ? "[%.60s]:%d" : "%.60s:%d", ip, port);
}

void ls_members_address(const ls_members *m, int rank, char *text_out, size_t cap)
{
    const ls_members_node *node = &m->node[ls_members_node_of(m, rank)];

    ls_members_format(node->ip, m->ports[rank], text_out, cap);
}

/* --- bytes ------------------------------------------------------------------------------------ */

static bool has_ports(const ls_members *m)
{
    for (int r = 0; r < m->ranks; r++)
        if (m->ports[r] != 0)
            return true;
    return false;
}

/* Runs of equal nodes are written once: nodes of 8, 8, 8 and 4 ranks are "3 x 8, 1 x 4". Where no rank
 * listens, as in a job that does not communicate between nodes, the ports are left out. */
void ls_members_encode(const ls_members *m, ls_str *out)
{
    bool ports = has_ports(m);
    ls_roster names;

    ls_roster_init(&names);
    for (int i = 0; i < m->nodes; i++)
        (void)ls_roster_add(&names, m->node[i].host, m->node[i].ip);
    ls_wire_codec_put(out, m->generation, 8);
    ls_wire_codec_put(out, (uint64_t)m->master_port, 2);
    ls_wire_codec_put(out, (uint64_t)m->nodes, 4);
    ls_wire_codec_put(out, names.bytes.len, 4);
    ls_str_append_bytes(out, names.bytes.p, names.bytes.len);
    for (int i = 0, n; i < m->nodes; i += n) {
        for (n = 1; i + n < m->nodes && m->node[i + n].ranks == m->node[i].ranks;)
            n++;
        ls_wire_codec_put_count(out, (uint32_t)n);
        ls_wire_codec_put_count(out, (uint32_t)m->node[i].ranks);
    }
    ls_wire_codec_put(out, ports, 1);
    for (int r = 0; r < m->ranks && ports; r++)
        ls_wire_codec_put(out, m->ports[r], 2);
    out->failed |= names.bytes.failed;
    ls_roster_release(&names);
}

/* All but the ports; into a list as well, where there is one. */
static ls_status read_nodes(ls_wire_codec *in, int node, ls_members_outline *o, ls_members *list)
{
    ls_status st = LS_OK;
    uint32_t run = 0, ranks = 0;

    o->nodes = (int)ls_wire_codec_get(in, 4);
    o->names_len = (size_t)ls_wire_codec_get(in, 4);
    in->bad |= o->nodes < 1 || o->nodes > LS_MEMBERS_NODES || o->names_len > in->left;
    if (in->bad)
        return LS_OK;
    o->names = in->at;
    ls_roster_walk walk = {.in = {.at = in->at, .left = o->names_len}};
    in->at += o->names_len;
    in->left -= o->names_len;
    for (int i = 0; i < o->nodes && !in->bad; i++, run--) {
        if (run == 0) {
            run = ls_wire_codec_get_count(in);
            ranks = ls_wire_codec_get_count(in);
            in->bad |= run < 1 || run > (uint32_t)(o->nodes - i) || ranks < 1;
        }
        in->bad |= ranks > (uint32_t)(LS_MEMBERS_RANKS - o->ranks) || !ls_roster_next(&walk);
        if (in->bad)
            break;
        o->ranks += (int)ranks;
        o->here = i == node ? (int)ranks : o->here;
        if (list)
            LS_TRY(st, ls_members_add(list, walk.host, walk.ip, (int)ranks, NULL), out);
    }
    in->bad |= walk.in.left > 0;
out:
    return st;
}

static ls_status unpack(const void *bytes, size_t len, int node, ls_members_outline *o,
                        ls_members *list)
{
    ls_wire_codec in = {.at = bytes, .left = len};
    uint64_t generation = ls_wire_codec_get(&in, 8);
    int master_port = (int)ls_wire_codec_get(&in, 2);
    ls_status st = LS_OK;

    *o = (ls_members_outline){.nodes = 0};
    LS_TRY(st, read_nodes(&in, node, o, list), out);
    uint64_t ports = ls_wire_codec_get(&in, 1);
    in.bad |= ports > 1 || in.left != (ports ? 2 * (size_t)o->ranks : 0);
    for (int r = 0; r < o->ranks && ports && list && !in.bad; r++)
        list->ports[r] = (uint16_t)ls_wire_codec_get(&in, 2);
    if (in.bad)
        st = ls_fail(LS_EDATA, "a list of members is damaged");
    if (list) {
        list->generation = generation;
        list->master_port = master_port;
    }
out:
    return st;
}

ls_status ls_members_check(const void *bytes, size_t len, int node, ls_members_outline *out)
{
    return unpack(bytes, len, node, out, NULL);
}

ls_status ls_members_decode(ls_members *m, const void *bytes, size_t len)
{
    ls_members_outline outline;

    ls_members_init(m);
    ls_status st = unpack(bytes, len, -1, &outline, m);
    if (st != LS_OK)
        ls_members_release(m);
    return st;
}

/* A sealed memory file and not a pipe: every worker reads it for itself, in any order, and a worker that
 * is started again later reads it once more. */
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
    if (info.st_size < 1 || info.st_size > LS_MEMBERS_BYTES)
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
