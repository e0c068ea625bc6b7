/* lab_job.c -- one command on each host of a lab. A host is a worker of one agent, in a network
 * namespace of its own:
 *
 *     lineshaft lab -- agent -- supervisor -+- worker in lab0: LINESHAFT_LAB_NODE=0, the secret
 *                                           +- worker in lab1: LINESHAFT_LAB_NODE=1, the secret
 *
 * A lineshaft command that runs there is an agent again, finds its place in these variables, and
 * meets the others without flags (job.c, find_nodes). */
#include "launch/lab_job.h"

#include "base/mem.h"
#include "net/secret.h"
#include "net/sock.h"

enum { SETTINGS = 4 };

typedef struct host {
    char text[SETTINGS][64];
    const char *list[SETTINGS + 2]; /* NAME=VALUE, with the addresses of all, NULL-terminated */
} host;

static void set_host(host *h, const ls_lab *lab, int i, int n, const char *addresses)
{
    snprintf(h->text[0], sizeof h->text[0], "LINESHAFT_LAB_NODE=%d", i);
    snprintf(h->text[1], sizeof h->text[1], "LINESHAFT_LAB_NODES=%d", n);
    snprintf(h->text[2], sizeof h->text[2], "LINESHAFT_LAB_ADDRESS=%s", ls_lab_address(lab, i));
    for (int k = 0; k < 3; k++)
        h->list[k] = h->text[k];
    h->list[3] = addresses;
    h->list[4] = NULL;
}

/* A secret for jobs between the hosts, which all of them inherit. */
static ls_status make_secret(int *fd_out)
{
    uint8_t bytes[LS_SECRET_BYTES];
    ls_status st;

    LS_TRY(st, ls_secret_random(bytes, sizeof bytes), out);
    st = ls_secret_to_fd(bytes, fd_out);
out:
    explicit_bzero(bytes, sizeof bytes);
    return st;
}

ls_status ls_lab_job_run(const ls_lab *lab, int n, ls_agent_args *agent,
                         ls_agent_result *result_out)
{
    ls_status st = LS_ENOMEM;
    ls_agent_host *hosts = ls_mem_array((size_t)n, sizeof *hosts);
    host *own = ls_mem_array((size_t)n, sizeof *own);
    ls_agent_fd secret = {.name = "LAB_SECRET", .fd = -1};
    ls_str all;

    ls_str_init(&all);
    if (!hosts || !own)
        goto out;
    ls_str_append(&all, "LINESHAFT_LAB_ADDRESSES=");
    for (int i = 0; i < n; i++)
        ls_str_printf(&all, "%s%s", i ? " " : "", ls_lab_address(lab, i));
    LS_TRY(st, ls_str_status(&all), out);
    for (int i = 0; i < n; i++) {
        set_host(&own[i], lab, i, n, all.p);
        hosts[i] = (ls_agent_host){
            .name = ls_lab_host(lab, i), .net_fd = ls_lab_net_fd(lab, i), .settings = own[i].list};
    }
    LS_TRY(st, make_secret(&secret.fd), out);
    agent->workers = n;
    agent->hosts = hosts;
    agent->fds = &secret;
    agent->n_fds = 1;
    agent->anywhere = true;
    st = ls_agent_run(agent, result_out);
    agent->hosts = NULL;
    agent->fds = NULL;
    agent->n_fds = 0;
out:
    ls_sock_close(&secret.fd);
    ls_str_release(&all);
    ls_mem_free(hosts);
    ls_mem_free(own);
    return st;
}
