/* test_launcher_env.c -- variables of launchers as they really are, mixed, and nonsense. */
#include "harness.h"
#include "base/mem.h"
#include "cluster/node/launcher_env.h"

/* Start from nothing; "NAME=VALUE" each. */
static void set(const char *const *list)
{
    clearenv();
    for (; *list; list++) {
        char name[64];
        const char *equals = strchr(*list, '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - *list), *list);
        setenv(name, equals + 1, 1);
    }
}
#define SET(...) set((const char *const[]){__VA_ARGS__, NULL})

/* "rank 3 of 8 (SLURM_PROCID), 1 of 4 on this node, node 1 of 2" */
static void explain(const ls_launcher_env *p, ls_str *out)
{
    if (!p->rank_from) {
        ls_str_append(out, "alone: nobody launched this process");
        return;
    }
    ls_str_printf(out, "rank %d of %d (%s)", p->rank, p->world, p->rank_from);
    if (p->local_rank >= 0 && p->local_world >= 0)
        ls_str_printf(out, ", %d of %d on this node", p->local_rank, p->local_world);
    if (p->node >= 0 && p->nodes >= 0)
        ls_str_printf(out, ", node %d of %d", p->node, p->nodes);
}

/* The explanation, which names all that matters. */
static void expect(const char *launcher, const char *text)
{
    ls_launcher_env p;
    ls_str out;

    LS_CHECK_OK(ls_launcher_env_find(&p));
    LS_CHECK_STR(p.launcher, launcher);
    ls_str_init(&out);
    explain(&p, &out);
    LS_CHECK_STR(out.p, text);
    ls_str_release(&out);
}

LS_TEST(places_without_a_launcher_are_alone)
{
    ls_launcher_env p;

    SET("HOME=/");
    expect("none", "alone: nobody launched this process");
    LS_CHECK_OK(ls_launcher_env_find(&p));
    LS_CHECK(p.rank == 0 && p.world == 1 && p.local_world == 1 && p.nodes == 1);
}

LS_TEST(places_of_our_agent_win)
{
    ls_launcher_env p;

    SET("LINESHAFT_RANK=5", "LINESHAFT_WORLD=8", "LINESHAFT_LOCAL_RANK=1",
        "LINESHAFT_LOCAL_WORLD=4", "LINESHAFT_NODE=1", "LINESHAFT_NODES=2",
        "LINESHAFT_GENERATION=18446744073709551615", "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1",
        "MASTER_ADDR=h1", "MASTER_PORT=29500", "SLURM_STEP_ID=0", "SLURM_PROCID=1",
        "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0", "SLURM_NODEID=1", "OMPI_COMM_WORLD_RANK=x");
    expect("lineshaft", "rank 5 of 8 (LINESHAFT_RANK), 1 of 4 on this node, node 1 of 2");
    LS_CHECK_OK(ls_launcher_env_find(&p));
    LS_CHECK(p.generation == UINT64_MAX && p.master_port == 29500);
    LS_CHECK_STR(p.master_addr, "h1");
}

LS_TEST(places_of_torchrun)
{
    SET("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",
        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", "TORCHELASTIC_RUN_ID=none");
    expect("torchrun", "rank 3 of 4 (RANK), 1 of 2 on this node");
    SET("RANK=3", "WORLD_SIZE=4", "MASTER_ADDR=m", "MASTER_PORT=23456");
    expect("torchrun", "rank 3 of 4 (RANK)");
    /* A container's RANK around an mpirun. */
    SET("RANK=0", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4");
    expect("openmpi", "rank 2 of 4 (OMPI_COMM_WORLD_RANK)");
    SET("LOCAL_RANK=1"); /* no launcher sets this one only */
    expect("none", "alone: nobody launched this process");
}

LS_TEST(places_of_mpi)
{
    SET("OMPI_COMM_WORLD_RANK=7", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=3",
        "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_RANK=7", "SLURM_STEP_ID=0", "SLURM_PROCID=0",
        "SLURM_STEP_NUM_TASKS=1");
    expect("openmpi", "rank 7 of 8 (OMPI_COMM_WORLD_RANK), 3 of 4 on this node");
    SET("PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1", "PMI_FD=5");
    expect("pmi", "rank 1 of 2 (PMI_RANK), 0 of 1 on this node");
    ls_launcher_env p;
    SET("PMIX_RANK=1", "PMIX_NAMESPACE=x");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE,
                   "PMIX_RANK is set, but no variable has the number of ranks");
}

LS_TEST(places_of_slurm)
{
    ls_launcher_env p;

    SET("SLURM_STEP_ID=0", "SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=7", "SLURM_NTASKS=7",
        "SLURM_LOCALID=1", "SLURM_NODEID=2", "SLURM_STEP_NUM_NODES=3",
        "SLURM_STEP_TASKS_PER_NODE=2(x2),3", "SLURM_STEP_NODELIST=h[1-3]", "PMIX_RANK=5");
    expect("slurm", "rank 5 of 7 (SLURM_PROCID), 1 of 3 on this node, node 2 of 3");
    LS_CHECK_OK(ls_launcher_env_find(&p));
    LS_CHECK_STR(p.master_addr, "h1");
    setenv("SLURM_STEP_TASKS_PER_NODE", "2(x2)", 1);
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "does not tell the tasks of node 2");
    setenv("SLURM_STEP_TASKS_PER_NODE", "2(x", 1);
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "SLURM_STEP_TASKS_PER_NODE");
    unsetenv("SLURM_STEP_TASKS_PER_NODE");
    expect("slurm", "rank 5 of 7 (SLURM_PROCID), node 2 of 3");
    unsetenv("SLURM_STEP_NUM_TASKS");
    expect("slurm", "rank 5 of 7 (SLURM_PROCID), node 2 of 3");
    setenv("SLURM_STEP_NODELIST", "h[1", 1);
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EDATA, "\"h[1\" is no list of hosts");
}

LS_TEST(places_in_a_batch_script_are_alone)
{
    SET("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_JOB_ID=5");
    expect("none", "alone: nobody launched this process");
    SET("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_STEP_ID=4294967291"); /* a batch step */
    expect("none", "alone: nobody launched this process");
    SET("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_STEP_ID=4294967290",
        "SLURM_STEP_NUM_TASKS=1"); /* the shell of salloc */
    expect("none", "alone: nobody launched this process");
    SET("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_ID=0", "SLURM_NTASKS=8");
    expect("slurm", "rank 0 of 1 (SLURM_PROCID)");
}

LS_TEST(places_refuse_nonsense)
{
    static const char *const wrong[] = {"",        "-1", "x", "3x", " 3", "99999999999999999999",
                                        "16777217"};
    ls_launcher_env p = {.rank = 77};

    for (size_t i = 0; i < LS_COUNT(wrong); i++) {
        SET("WORLD_SIZE=4", "LOCAL_RANK=0");
        setenv("RANK", wrong[i], 1);
        LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "the variable RANK holds \"");
    }
    SET("RANK=4", "WORLD_SIZE=4", "LOCAL_RANK=0");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "RANK is 4, but WORLD_SIZE is 4");
    SET("RANK=0", "WORLD_SIZE=0", "LOCAL_RANK=0");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "WORLD_SIZE is 0: there are no ranks");
    SET("RANK=1", "LOCAL_RANK=0");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE,
                   "RANK is set, but no variable has the number");
    SET("RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE,
                   "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2");
    SET("RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=4");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "contradict each other: rank 1 of 4");
    SET("RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=5");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "contradict");
    SET("RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "MASTER_PORT=65536");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "MASTER_PORT is 65536, which is no port");
    SET("LINESHAFT_RANK=0", "LINESHAFT_WORLD=1", "LINESHAFT_GENERATION=-3");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE, "which is no generation");
    SET("LINESHAFT_RANK=0", "LINESHAFT_WORLD=1", "LINESHAFT_NODE=1", "LINESHAFT_NODES=1");
    LS_CHECK_FAILS(ls_launcher_env_find(&p), LS_EUSAGE,
                   "LINESHAFT_NODE is 1, but LINESHAFT_NODES is 1");
    LS_CHECK_EQ(p.rank, 77); /* untouched by failures */
}

/* Names with spaces between them. */
static void expect_hosts(const char *list, const char *want, int n)
{
    ls_str names;
    int count = 0;

    ls_str_init(&names);
    LS_CHECK_OK(ls_launcher_env_hosts(list, &names, &count));
    LS_CHECK_EQ(count, n);
    for (size_t i = 0; i + 1 < names.len; i++)
        if (names.p[i] == '\0')
            names.p[i] = ' ';
    if (want)
        LS_CHECK_STR(names.p, want);
    ls_str_release(&names);
}

LS_TEST(places_expand_lists_of_hosts)
{
    expect_hosts("h1", "h1", 1);
    expect_hosts("h[1-4]", "h1 h2 h3 h4", 4);
    expect_hosts("a,b[8-11,3],c", "a b8 b9 b10 b11 b3 c", 7);
    expect_hosts("n[007-010]", "n007 n008 n009 n010", 4);
    expect_hosts("r[1-2]n[5,07]x,y", "r1n5x r1n07x r2n5x r2n07x y", 5);
    expect_hosts("h[1-65536]", NULL, 65536);
}

LS_TEST(places_refuse_lists_that_are_none)
{
    static const char *const wrong[] = {
        "",      ",",       "a,",       "h[",     "h[]",
        "h[1",   "h]1",     "h[x]",     "h[3-1]", "h[1-]",
        "h[-1]", "h[1,]x[", "h[1-2-3]", "h[1]]",  "h[0-18446744073709551615]",
        "h[[1]]"};
    ls_str names;
    int count = 0;

    ls_str_init(&names);
    for (size_t i = 0; i < LS_COUNT(wrong); i++) {
        if (ls_launcher_env_hosts(wrong[i], &names, &count) != LS_EDATA)
            ls_test_fail(__FILE__, __LINE__, "\"%s\" was accepted", wrong[i]);
    }
    LS_CHECK_FAILS(ls_launcher_env_hosts("h[1-60000],g[1-60000]", &names, &count), LS_EDATA,
                   "more than 65536 hosts");
    LS_CHECK_FAILS(ls_launcher_env_hosts("a[1-9999]b[1-9999]c[1-9999]", &names, &count), LS_EDATA,
                   "more than 65536 hosts");
    ls_mem_fail_nth(1);
    ls_str_release(&names);
    LS_CHECK_EQ(ls_launcher_env_hosts("a", &names, &count), LS_ENOMEM);
    ls_mem_fail_nth(0);
    ls_str_release(&names);
}
