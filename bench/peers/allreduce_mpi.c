/* allreduce_mpi.c PEER OPS SIZES SECONDS -- collectives of an MPI library, for bench/comm.sh.
 *
 * One JSON object a line for each operation and size: median and best time of a call, in
 * microseconds. A call begins behind a barrier and lasts until the slowest rank has left it; every
 * result is checked before anything is timed. `bytes` is the whole buffer of a rank: what
 * all_reduce, broadcast and all_to_all work on, what all_gather gives, what reduce_scatter takes.
 * Compiled outside the tree by bench/peers/comm_setup.sh; not part of the program. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_CALLS = 5, MOST_CALLS = 5000 };

static int rank, ranks;

typedef struct buffers {
    float *in, *out;
    int count; /* floats of the whole buffer */
} buffers;

/* --- the operations ------------------------------------------------------------------------- */

typedef struct operation {
    const char *name;
    void (*run)(buffers *b);
    void (*fill)(buffers *b);
    int (*wrong)(const buffers *b); /* results of run() behind fill() that are not as they must be */
} operation;

static float value(int of_rank, int i)
{
    return (float)((of_rank + 1) * (i % 7 + 1));
}

static void fill_in(buffers *b)
{
    for (int i = 0; i < b->count; i++)
        b->in[i] = b->out[i] = value(rank, i);
}

static float sum_of(int i)
{
    return (float)(ranks * (ranks + 1) / 2) * (float)(i % 7 + 1);
}

static void all_reduce(buffers *b)
{
    MPI_Allreduce(MPI_IN_PLACE, b->out, b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int all_reduce_wrong(const buffers *b)
{
    int wrong = 0;

    for (int i = 0; i < b->count; i++)
        wrong += b->out[i] != sum_of(i);
    return wrong;
}

static void broadcast(buffers *b)
{
    MPI_Bcast(b->out, b->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static int broadcast_wrong(const buffers *b)
{
    int wrong = 0;

    for (int i = 0; i < b->count; i++)
        wrong += b->out[i] != value(0, i);
    return wrong;
}

static void all_gather(buffers *b)
{
    MPI_Allgather(b->in, b->count / ranks, MPI_FLOAT, b->out, b->count / ranks, MPI_FLOAT,
                  MPI_COMM_WORLD);
}

static int all_gather_wrong(const buffers *b)
{
    int each = b->count / ranks, wrong = 0;

    for (int i = 0; i < each * ranks; i++)
        wrong += b->out[i] != value(i / each, i % each);
    return wrong;
}

static void reduce_scatter(buffers *b)
{
    MPI_Reduce_scatter_block(b->in, b->out, b->count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int reduce_scatter_wrong(const buffers *b)
{
    int each = b->count / ranks, wrong = 0;

    for (int i = 0; i < each; i++)
        wrong += b->out[i] != sum_of(rank * each + i);
    return wrong;
}

static void all_to_all(buffers *b)
{
    MPI_Alltoall(b->in, b->count / ranks, MPI_FLOAT, b->out, b->count / ranks, MPI_FLOAT,
                 MPI_COMM_WORLD);
}

static int all_to_all_wrong(const buffers *b)
{
    int each = b->count / ranks, wrong = 0;

    for (int i = 0; i < each * ranks; i++)
        wrong += b->out[i] != value(i / each, rank * each + i % each);
    return wrong;
}

static void barrier(buffers *b)
{
    (void)b;
    MPI_Barrier(MPI_COMM_WORLD);
}

static int nothing_wrong(const buffers *b)
{
    (void)b;
    return 0;
}

static const operation operations[] = {
    {"all_reduce", all_reduce, fill_in, all_reduce_wrong},
    {"broadcast", broadcast, fill_in, broadcast_wrong},
    {"all_gather", all_gather, fill_in, all_gather_wrong},
    {"reduce_scatter", reduce_scatter, fill_in, reduce_scatter_wrong},
    {"all_to_all", all_to_all, fill_in, all_to_all_wrong},
    {"barrier", barrier, fill_in, nothing_wrong},
};

/* --- timing --------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double call(const operation *op, buffers *b)
{
    double begin;

    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    op->run(b);
    return MPI_Wtime() - begin;
}

/* As many calls as fit into the time, by what the first ones took; the same on all ranks. */
static int calls_for(const operation *op, buffers *b, double seconds)
{
    double begin, each;
    int calls, warm = 0;

    call(op, b);
    begin = MPI_Wtime();
    do {
        double go;

        call(op, b);
        warm++;
        go = MPI_Wtime() - begin < seconds / 10 && warm < 200;
        MPI_Bcast(&go, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (go == 0)
            break;
    } while (1);
    each = (MPI_Wtime() - begin) / warm;
    calls = each * MOST_CALLS < seconds ? MOST_CALLS : (int)(seconds / each);
    calls = calls < LEAST_CALLS ? LEAST_CALLS : calls;
    MPI_Bcast(&calls, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return calls;
}

static void measure(const char *peer, const operation *op, long long bytes, double seconds)
{
    buffers b = {.count = (int)(bytes / (long long)sizeof(float))};
    size_t room = ((size_t)bytes + 4096) / 4096 * 4096;
    double *own, *slowest;
    int calls, wrong;

    b.in = aligned_alloc(4096, room);
    b.out = aligned_alloc(4096, room);
    own = malloc(MOST_CALLS * sizeof *own);
    slowest = malloc(MOST_CALLS * sizeof *slowest);
    if (!b.in || !b.out || !own || !slowest)
        MPI_Abort(MPI_COMM_WORLD, 2);
    op->fill(&b);
    op->run(&b);
    wrong = op->wrong(&b);
    if (wrong) {
        fprintf(stderr, "%s: rank %d: %d wrong values of %s, %lld bytes\n", peer, rank, wrong,
                op->name, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(b.in, 0, room); /* sums that are repeated stay what they are */
    memset(b.out, 0, room);
    calls = calls_for(op, &b, seconds);
    for (int i = 0; i < calls; i++)
        own[i] = call(op, &b);
    MPI_Reduce(own, slowest, calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(slowest, (size_t)calls, sizeof *slowest, by_value);
        printf("{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"us\": %.3f, \"best_us\": %.3f, "
               "\"calls\": %d, \"peer\": \"%s\"}\n",
               op->name, ranks, bytes, slowest[calls / 2] * 1e6, slowest[0] * 1e6, calls, peer);
        fflush(stdout);
    }
    free(b.in);
    free(b.out);
    free(own);
    free(slowest);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5) {
        fprintf(stderr, "usage: allreduce_mpi PEER OP[,OP...] BYTES[,BYTES...] SECONDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const operation *op = &operations[i];
        size_t len = strlen(op->name);
        char *at = strstr(argv[2], op->name);

        if (!at || (at[len] != ',' && at[len] != '\0') || (at != argv[2] && at[-1] != ','))
            continue;
        if (op->run == barrier) {
            measure(argv[1], op, 0, strtod(argv[4], NULL));
            continue;
        }
        for (char *s = argv[3]; *s;) {
            measure(argv[1], op, strtoll(s, &s, 10), strtod(argv[4], NULL));
            s += *s == ',';
        }
    }
    alarm(10); /* MPICH's ranks may wait for each other for ever here when they exceed the cores */
    MPI_Finalize();
    return 0;
}
