/* team.c -- ranks that have one model together: their communicators, and the end of their steps.
 *
 *   6 ranks, mesh.tp: 2     team     0    1    2      tensors of the model, in every layer; with
 *   (or mesh.ep: 2)                                   mesh.ep rows of tokens, for experts
 *                           ranks   0 1  2 3  4 5
 *                                   |____|____|       gradients of the same part: once in a step
 *                                     |____|____|
 *
 * With a pipeline (mesh.pp) a post is a team. Ranks of the same place in their teams are a plane,
 * which is a pipeline of its own (line.h): everything that lines do, they do in each plane.
 *
 *   8 ranks, mesh.pp: 2, mesh.tp: 2         plane 0                 plane 1
 *                                  post 0    0 --- 2  sums across    1 --- 3
 *                                            |     |  streams        |     |
 *                                  post 1    4 --- 6  along          5 --- 7     teams: 0 1, 2 3,
 * ...
 *
 * What the whole model has comes together on the first rank alone: its team sends it parts of
 * tensors, box by box, and it puts each into its place. The other way round each rank of the first
 * team gets its boxes, and those of the other teams get theirs from it. All of it goes parameter by
 * parameter through a small buffer. Where a plane divides its part further, by layers or by ZeRO,
 * the first team's rank of the plane collects it first.
 *
 * The norm of the gradient counts what several ranks have alike once: the first of them does. Each
 * rank sums the squares of what it counts, of what it updates; all ranks add these up in the same
 * order. */
#include "train/team.h"

#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "train/line_impl.h"
#include "train/session_impl.h"

static int64_t deadline(void)
{
    return ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S;
}

/* --- the session ------------------------------------------------------------------------------ */

const ls_model *ls_team_whole(const ls_session *session)
{
    return session->whole.params ? &session->whole : &session->model;
}

const ls_mesh *ls_team_mesh(const ls_session *session)
{
    return session->mesh.tp > 1 ? &session->teams : &session->mesh;
}

const ls_mesh *ls_team_plane(const ls_session *session)
{
    return ls_mesh_team(&session->mesh) > 1 ? &session->teams : &session->mesh;
}

ls_comm *ls_team_alike(const ls_session *session)
{
    return ls_mesh_team(&session->mesh) > 1 ? session->alike : session->args.comm;
}

bool ls_team_speaks(const ls_session *session)
{
    return session->mesh.rank % ls_mesh_tp(&session->mesh) == 0;
}

ls_status ls_team_models(ls_session *session)
{
    ls_session *s = session;
    int team = ls_mesh_team(&s->mesh);
    int64_t vocab = ls_tokenizer_vocab(s->tokenizer);
    ls_split split = {.rank = s->mesh.rank % team,
                      .ranks = team,
                      .sequence = s->mesh.tp > 1 && s->run->mesh.sp,
                      .by_experts = s->mesh.ep > 1};
    ls_status st = LS_OK;

    ls_model_release(&s->model);
    if (team > 1 && !s->whole.params) /* else a save may still read its names */
        LS_TRY(st, ls_model_init(&s->whole, s->run, vocab), out);
    st = ls_model_init_split(&s->model, s->run, vocab, split);
out:
    return st;
}

/* A team is best kept where memory is shared. */
static void warn_of_nodes(const ls_session *s)
{
    int team = ls_mesh_team(&s->mesh);
    bool apart = false;

    for (int r = 0; r < s->mesh.ranks && s->mesh.places; r++)
        apart |= s->mesh.places[r].node != s->mesh.places[r / team * team].node;
    if (apart && ls_session_is_first(s))
        ls_log(LS_LOG_WARN,
               "ranks that have a model together (mesh.%s) are on several nodes: every "
               "layer waits for the network between them",
               s->mesh.tp > 1 ? "tp" : "ep");
}

ls_status ls_team_open(ls_session *session)
{
    ls_session *s = session;
    int team = ls_mesh_team(&s->mesh), teams = s->mesh.ranks / team, rank = s->mesh.rank;
    int list[LS_MESH_RANKS];
    ls_status st = LS_OK;

    if (team == 1)
        return LS_OK;
    warn_of_nodes(s);
    for (int i = 0; i < team; i++)
        list[i] = rank / team * team + i;
    LS_TRY(st, ls_comm_sub(s->args.comm, list, team, deadline(), &s->team), out);
    for (int i = 0; i < teams; i++)
        list[i] = i * team + rank % team;
    if (teams > 1)
        LS_TRY(st, ls_comm_sub(s->args.comm, list, teams, deadline(), &s->alike), out);
    LS_TRY(st, ls_tensor_open(&s->tensor, s->team, s->model.split.kv_copies), out);
    if (teams > 1 && s->mesh.pp < 2)
        s->teams.bucket = ls_dp_bucket_blocks(
            s->alike, &s->teams, s->mesh.ep > 1 ? s->model.trained : s->whole.trained / team,
            s->run->mesh.bucket);
out:
    return st;
}

ls_status ls_team_agree(ls_session *session)
{
    ls_session *s = session;
    ls_run *run = &s->fitted;
    int64_t L = s->model.shape.L, blocks = run->train.recompute_blocks;
    ls_recompute level = run->train.recompute;
    double much = level == LS_RECOMPUTE_NONE ? 0 : (double)(blocks == LS_RUN_AUTO ? L : blocks);
    ls_status st;

    if (!s->team)
        return LS_OK;
    if (level == LS_RECOMPUTE_FULL)
        much += (double)L;
    LS_TRY(st,
           ls_comm_run(s->team,
                       &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                  .op = LS_COLL_MAX,
                                  .type = LS_F64,
                                  .count = 1,
                                  .in = &much,
                                  .out = &much},
                       deadline()),
           out);
    blocks = (int64_t)much;
    run->train.recompute = blocks == 0   ? LS_RECOMPUTE_NONE
                           : blocks <= L ? LS_RECOMPUTE_SELECTIVE
                                         : LS_RECOMPUTE_FULL;
    run->train.recompute_blocks = blocks == 0 ? LS_RUN_AUTO : blocks <= L ? blocks : blocks - L;
out:
    return st;
}

ls_status ls_team_open_sums(ls_session *session)
{
    ls_session *s = session;

    if (!s->alike)
        return LS_OK;
    ls_dp_args dp = ls_memory_dp(s->run, &s->model, &s->teams);
    dp.comm = s->alike;
    return ls_dp_open(&s->sums, &dp);
}

void ls_team_close(ls_session *session)
{
    ls_session *s = session;

    ls_dp_close(s->sums);
    ls_tensor_close(s->tensor);
    ls_comm_close(s->alike);
    ls_comm_close(s->team);
    s->sums = NULL;
    s->tensor = NULL;
    s->alike = s->team = NULL;
}

/* --- the norm --------------------------------------------------------------------------------- */

/* Whether this rank is the first of those that have a parameter alike. */
static bool counts(const ls_model *model, const ls_param *p)
{
    return p->trained >= 0 && model->split.rank % p->box.copies == 0;
}

/* The sum of squares of what this rank counts of an own part: runs of parameters side by side at a
 * time. */
static double squares_of(ls_step *s, const ls_norm2 *whole, ls_mesh_part own)
{
    const ls_model *model = s->args.model;
    double sum = 0;

    for (int i = 0, end; i < model->n_params; i = end) {
        const ls_param *p = &model->params[i];
        for (end = i + 1;
             end < model->n_params && counts(model, p) && counts(model, &model->params[end]);)
            end++;
        const ls_param *last = &model->params[end - 1];
        int64_t from = ls_max_i64(p->trained, own.first);
        int64_t to = ls_min_i64(last->trained + last->count, own.first + own.count);
        if (!counts(model, p) || from >= to)
            continue;
        ls_norm2 run = *whole;
        run.part = LS_NORM_SQUARES;
        run.x = ls_step_own_gradient(s, own) + from - own.first;
        run.n = to - from;
        s->args.kernels->norm2(s->args.stream, &run);
        for (int64_t b = 0; b < (run.n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK; b++)
            sum += (double)run.partials[b];
    }
    return sum;
}

/* Who of the plane has squares of its own: nobody else, the ranks of the line, or, where lines or
 * teams divide what they update, all of them. */
static ls_comm *plane_of(const ls_step *s)
{
    bool divided = s->line ? s->line->plan.divides : ls_step_divides(s);

    return divided ? ls_dp_about(s->args.dp)->comm : s->line ? s->line->along : NULL;
}

/* Where this rank's squares are among those of all; returns how many these are. */
static int square_slots(const ls_step *s, int *own_out)
{
    ls_comm *plane = plane_of(s);
    const ls_split *split = &s->args.model->split;

    *own_out = (plane ? ls_comm_rank(plane) : 0) * split->ranks + split->rank;
    return (plane ? ls_comm_ranks(plane) : 1) * split->ranks;
}

ls_status ls_step_open_team(ls_step *step)
{
    ls_step *s = step;
    const ls_model *model = s->args.model;
    int own;

    if (!ls_step_teams(s))
        return LS_OK;
    s->team.spans = ls_mem_array((size_t)model->n_params, sizeof *s->team.spans);
    s->team.squares = ls_mem_array((size_t)square_slots(s, &own), sizeof *s->team.squares);
    if (!s->team.spans || !s->team.squares)
        return LS_ENOMEM;
    s->team.n = ls_model_partials(model, s->team.spans);
    return LS_OK;
}

void ls_step_close_team(ls_step *step)
{
    ls_mem_free(step->team.spans);
    ls_mem_free(step->team.squares);
}

/* Zeros in place of what other ranks have of a span. */
static void clear_others(const ls_step *s, float *x, const ls_crew_span *span)
{
    int64_t end = span->first + span->count;

    for (int64_t at = span->first, next; at < end; at = next) {
        ls_step_piece own = {.first = end};
        (void)ls_step_own_piece(s, at, end, &own);
        if (own.count <= 0)
            own = (ls_step_piece){.first = end};
        memset(x + at, 0, (size_t)(own.first - at) * sizeof *x);
        next = own.first + own.count;
    }
}

/* What several ranks of the team have a part of, of a range of the gradients x. divided: those who
 * have the sums of their own parts only; NULL: all have all. */
static ls_status sum_range(ls_step *s, float *x, ls_pipe_range r, ls_comm *divided)
{
    const ls_crew_span *spans = s->team.spans;
    int from = 0, end;

    while (from < s->team.n && spans[from].first < r.first)
        from++;
    for (end = from; end < s->team.n && spans[end].first < r.first + r.count; end++)
        if (divided)
            clear_others(s, x, &spans[end]);
    return ls_tensor_sum(s->args.tensor, x, spans + from, end - from, divided);
}

static ls_status sum_partials(ls_step *s)
{
    const ls_line *x = s->line;
    ls_pipe_range all = {0, s->args.model->trained};
    ls_status st = LS_OK;

    if (!x)
        return sum_range(s, s->grads[0], all,
                         ls_step_divides(s) ? ls_dp_about(s->args.dp)->comm : NULL);
    for (int c = 0; c < x->plan.chunks && st == LS_OK; c++)
        st = sum_range(s, ls_line_grad(x, c, 0), x->plan.chunk[c].own,
                       x->plan.divides ? x->across : NULL);
    return st;
}

/* The squares of all ranks that count some become the blocks of a norm. */
ls_status ls_step_team_norm(ls_step *step, const ls_norm2 *whole)
{
    ls_step *s = step;
    ls_comm *const comms[2] = {plane_of(s), ls_tensor_comm(s->args.tensor)};
    float *squares = s->team.squares;
    int own, slots = square_slots(s, &own);
    double sum = 0;
    ls_norm2 join = *whole;
    ls_status st;

    LS_TRY(st, sum_partials(s), out);
    for (int b = 0; b < ls_step_buckets(s); b++)
        sum += squares_of(s, whole, ls_step_own(s, b));
    memset(squares, 0, (size_t)slots * sizeof *squares);
    squares[own] = (float)sum;
    for (int i = 0; i < 2; i++) /* each number is one rank's: sums with zeros */
        if (comms[i])
            LS_TRY(st,
                   ls_comm_run(comms[i],
                               &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                          .op = LS_COLL_SUM,
                                          .type = LS_F32,
                                          .count = slots,
                                          .in = squares,
                                          .out = squares},
                               deadline()),
                   out);
    join.part = LS_NORM_JOIN;
    join.partials = squares;
    join.n = slots * (int64_t)LS_NORM_BLOCK;
    s->args.kernels->norm2(s->args.stream, &join);
out:
    return st;
}

ls_status ls_step_team_vote(ls_step *step)
{
    const ls_coll barrier = {.kind = LS_COLL_BARRIER};

    return ls_comm_run(ls_tensor_comm(step->args.tensor), &barrier, deadline());
}

ls_status ls_step_team_blame(ls_step *step, double *saw)
{
    ls_comm *team = ls_tensor_comm(step->args.tensor);
    int ranks = ls_comm_ranks(team), who = 0;
    double *all = ls_mem_array((size_t)ranks, sizeof *all);
    ls_err_record record = *ls_err_last();
    ls_status st = LS_OK;

    if (!all)
        return LS_ENOMEM;
    all[ls_comm_rank(team)] = *saw;
    LS_TRY(st,
           ls_comm_run(team,
                       &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                  .op = LS_COLL_SUM,
                                  .type = LS_F64,
                                  .count = ranks,
                                  .in = all,
                                  .out = all},
                       deadline()),
           out);
    for (int r = 1; r < ranks; r++)
        who = all[r] < all[who] ? r : who;
    *saw = all[who];
    LS_TRY(st,
           ls_comm_run(team,
                       &(ls_coll){.kind = LS_COLL_BROADCAST,
                                  .type = LS_U8,
                                  .count = sizeof record.text,
                                  .in = record.text,
                                  .out = record.text,
                                  .peer = who},
                       deadline()),
           out);
    st = ls_err_adopt(&record);
out:
    ls_mem_free(all);
    return st;
}

/* --- parts and the whole -----------------------------------------------------------------------
 */

/* One parameter of one rank of the first team, on its way to or from the first rank. */
typedef struct passage {
    ls_comm *team;
    const ls_param *p; /* as that rank has it */
    int place;         /* of that rank */
    float *part;       /* where it has the parameter; of other ranks not used */
    float *whole;      /* where the whole model has it; on the first rank */
    float *buffer;     /* `piece` of them, on the first rank */
    int64_t piece;
    bool back; /* from the whole to the part */
} passage;

/* Elements first .. first+n-1 of the part, to or from their places in the whole. */
static void place_piece(const passage *x, int64_t first, int64_t n, float *piece)
{
    for (int64_t done = 0, run; done < n; done += run) {
        int64_t at = ls_box_whole(&x->p->box, x->p->shape, first + done, &run);
        run = ls_min_i64(run, n - done);
        float *to = x->back ? piece + done : x->whole + at;
        const float *from = x->back ? x->whole + at : piece + done;
        memcpy(to, from, (size_t)run * sizeof *to);
    }
}

static ls_status pass_parameter(const passage *x)
{
    int me = ls_comm_rank(x->team);
    ls_status st = LS_OK;

    if (!x->back && x->place % x->p->box.copies != 0)
        return LS_OK; /* another rank has sent the same */
    if (x->place == 0 && me == 0)
        place_piece(x, 0, x->p->count, x->part);
    if (x->place == 0 || (me != 0 && me != x->place))
        return LS_OK;
    for (int64_t at = 0; at < x->p->count && st == LS_OK; at += x->piece) {
        int64_t n = ls_min_i64(x->piece, x->p->count - at);
        float *memory = me == 0 ? x->buffer : x->part + at;
        bool sends = (me == 0) == x->back;
        ls_coll coll = {.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                        .type = LS_F32,
                        .count = n,
                        .in = memory,
                        .out = memory,
                        .peer = me == 0 ? x->place : 0};
        if (me == 0 && x->back)
            place_piece(x, at, n, memory);
        st = ls_comm_run(x->team, &coll, deadline());
        if (me == 0 && !x->back && st == LS_OK)
            place_piece(x, at, n, memory);
    }
    return st;
}

/* All parameters of all ranks of the first team. What is trained lies where the weights lie: all of
 * it is. */
static ls_status pass_all(ls_step *s, float *part, float *whole, bool back)
{
    const ls_model *model = s->args.model;
    passage x = {.team = ls_tensor_comm(s->args.tensor), .back = back};
    ls_model all = {.params = NULL}, other = {.params = NULL};
    ls_status st = LS_OK;

    LS_BUG_IF(model->flat != model->trained, "parts of a model that is not trained as a whole");
    LS_TRY(st, ls_model_init(&all, s->args.run, model->tokens), out);
    x.piece = ls_memory_passage(&all);
    if (model->split.rank == 0) {
        x.buffer = ls_mem_array((size_t)x.piece, sizeof *x.buffer);
        LS_TRY(st, x.buffer ? LS_OK : LS_ENOMEM, out);
    }
    for (x.place = 0; x.place < model->split.ranks; x.place++) {
        ls_split split = model->split;
        split.rank = x.place;
        ls_model_release(&other);
        LS_TRY(st, ls_model_init_split(&other, s->args.run, model->tokens, split), out);
        for (int i = 0; i < other.n_params; i++) {
            x.p = &other.params[i];
            x.part = part + x.p->first;
            x.whole = whole ? whole + ls_model_same(&all, x.p)->first : NULL;
            LS_TRY(st, pass_parameter(&x), out);
        }
    }
out:
    ls_model_release(&other);
    ls_model_release(&all);
    ls_mem_free(x.buffer);
    return st;
}

static bool is_first_team(const ls_step *s)
{
    return !s->args.dp || ls_dp_about(s->args.dp)->mesh.rank == 0;
}

/* Whether a rank has all of an array of its part of the model. */
static bool has_part(const ls_step *s, const float *array)
{
    return !s->line && (!ls_step_divides(s) || array == s->state_memory[0]);
}

/* Where the first team's ranks bring an array of their planes together; NULL on others. */
static ls_status open_plane(ls_step *s, float **plane_out)
{
    void *memory = NULL;
    ls_status st = LS_OK;

    if (is_first_team(s))
        st = ls_device_alloc(ls_stream_device(s->args.stream),
                             s->args.model->flat * (int64_t)sizeof(float), "a part of the model",
                             &memory);
    *plane_out = memory;
    return st;
}

ls_status ls_step_team_collect(ls_step *step, const float *part, float *whole)
{
    ls_step *s = step;
    float *own = (float *)(uintptr_t)part; /* what is not to be changed is only read */
    float *plane = NULL;
    ls_status st = LS_OK;

    if (!has_part(s, part)) {
        LS_TRY(st, open_plane(s, &plane), out);
        LS_TRY(st,
               s->line ? ls_line_collect(s, part, plane) : ls_dp_collect(s->args.dp, part, plane),
               out);
        own = plane;
    }
    if (is_first_team(s))
        st = pass_all(s, own, whole, false);
out:
    ls_device_free(ls_stream_device(s->args.stream), plane);
    return st;
}

ls_status ls_step_team_deal(ls_step *step, const float *whole, float *part)
{
    ls_step *s = step;
    float *own = part, *plane = NULL;
    ls_status st = LS_OK;

    if (!has_part(s, part)) {
        LS_TRY(st, open_plane(s, &plane), out);
        own = plane;
    }
    if (is_first_team(s))
        LS_TRY(st, pass_all(s, own, (float *)(uintptr_t)whole, true), out);
    if (!has_part(s, part))
        st = s->line ? ls_line_deal(s, plane, part) : ls_dp_deal(s->args.dp, plane, part);
    else if (s->args.dp)
        st = ls_dp_tell(s->args.dp, 0, part, s->args.model->flat * (int64_t)sizeof *part);
out:
    ls_device_free(ls_stream_device(s->args.stream), plane);
    return st;
}
