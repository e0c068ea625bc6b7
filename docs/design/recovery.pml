/* recovery.pml -- the rules of a view change, for spin.
 *
 * Three members train in lock step under a coordinator that keeps a log. Up to KILLS of them die at any
 * moment; the coordinator dies once at any moment and comes back with nothing but its log.
 *
 *   a step      all members of the view contribute; when all have, each applies it, in its own time
 *   REVOKE(g)   a member stops, and reports the last step it has applied
 *   PLAN(g)     base = the highest step that anybody reported; a rank that is behind copies it from one that is not
 *   COMMIT(g)   when all members of the plan are ready; they go on at base + 1
 *
 * A generation is in the log before anybody hears of it, so that no two views have the same one. What
 * must hold is asserted where it could break:
 *   - nobody ever goes back: the base is not below any step that a living member has applied
 *   - living members have the same history: each step was made in the same generation for all of them
 *   - a step sums each sample of its batch once
 *   - no two views have the same generation
 *   - a manifest is committed only for the generation that holds, at most once for a step, in the order of steps
 * and, with fairness: the job ends, finished or without members (never_stuck).
 *
 * A rule is left out with -D: BUG_LOWEST (base = the lowest step), BUG_FORGET (generations are not in the
 * log), BUG_ASLEEP (it does not ask when it is back), BUG_DEAF (frames of an old generation count), BUG_TOKEN (anybody may commit a manifest). Each
 * must be found. Run by `make model`. */
#ifndef KILLS
#define KILLS 2
#endif
#define N 3
#define SAMPLES 6
#define LAST 2 /* steps of the job */
#define MOST 6 /* generations of a run: 1 + a view change for each death, and one for the coordinator's, and slack */

typedef history { byte at[LAST + 1] }; /* at[s]: the generation in which step s was made */

bool alive[N] = true;
byte gen[N] = 1;       /* the view that a member trains in */
byte heard[N] = 1;     /* the highest generation it has stopped for, and reported its last step to */
byte applied[N];       /* its last step */
byte ready[N];         /* generation for which it is ready */
history did[N];

byte given[N];         /* the step for which a member has handed in its part, */
byte given_gen[N] = 1; /* the generation of those frames, */
byte part[N];          /* and the samples they stand for, of SAMPLES */

byte logged = 1;       /* durable: the highest generation ever used, */
byte held = 1;         /* and the last view that was committed */
bool member[N] = true; /* of the view that is in use or being made; durable with `held` */
byte view[MOST];       /* who belongs to a generation: a bit for each, written when it is made */
byte making;           /* 0, or the generation being made: not durable */
byte base;
bool up = true;        /* the coordinator */
#ifndef CRASHES
#define CRASHES 1 /* of the coordinator */
#endif
byte crashes;
byte kills;
byte manifest;         /* the newest committed, and its generation */
byte manifest_gen;
bool over;

#define IN(i) (alive[i] && member[i])
#define SEES(i) (view[gen[me]] >> i & 1) /* whom a member counts with: its own view, however old */
#ifdef BUG_DEAF
#define HAS(i, s) (!SEES(i) || given[i] >= s)
#else
#define HAS(i, s) (!SEES(i) || (given[i] >= s && given_gen[i] == gen[me]))
#endif

/* What a member of the view has applied is never above the base, and histories are one. */
inline check_view()
{
    byte a = 0, s;
    do
    :: a < N ->
        if
        :: alive[a] && member[a] ->
            assert(applied[a] <= base);
            s = 1;
            do
            :: s <= applied[a] -> assert(did[a].at[s] == did[source].at[s]); s++
            :: else -> break
            od
        :: else
        fi;
        a++
    :: else -> break
    od;
    a = 0; s = 0
}

/* A generation that nobody has heard of, in the log before anybody does. */
inline start_view()
{
    logged++;
    assert(logged < MOST);
    assert(logged > heard[0] && logged > heard[1] && logged > heard[2]);
    making = logged;
    view[making] = member[0] | member[1] << 1 | member[2] << 2;
    base = 255
}

proctype Member(byte me)
{
    byte s, source;
end:
    do
    :: atomic { !alive[me] -> break }
    :: atomic { over -> break }
    /* train: hand in, then apply when all have */
    :: atomic { alive[me] && heard[me] == gen[me] && applied[me] < LAST &&
                !(given[me] == applied[me] + 1 && given_gen[me] == gen[me]) ->
                given[me] = applied[me] + 1; given_gen[me] = gen[me];
                part[me] = SAMPLES / (SEES(0) + SEES(1) + SEES(2)) }
    :: atomic { alive[me] && heard[me] == gen[me] && applied[me] < LAST &&
                HAS(0, applied[me] + 1) && HAS(1, applied[me] + 1) && HAS(2, applied[me] + 1) ->
                assert(SEES(0) * part[0] + SEES(1) * part[1] + SEES(2) * part[2] == SAMPLES);
                applied[me]++; did[me].at[applied[me]] = gen[me] }
    :: atomic { alive[me] && up && making > heard[me] && member[me] -> heard[me] = making } /* stop, and report */
    /* the plan: copy from one who has the base */
    :: atomic { alive[me] && up && making > 0 && making == heard[me] && base != 255 && ready[me] != making ->
        if
        :: applied[me] >= base -> ready[me] = making
        :: applied[me] < base ->
            if
            :: alive[0] && member[0] && applied[0] >= base -> source = 0
            :: alive[1] && member[1] && applied[1] >= base -> source = 1
            :: alive[2] && member[2] && applied[2] >= base -> source = 2
            :: else -> skip /* the source died: the coordinator will see it */
            fi;
            if
            :: alive[source] && applied[source] >= base ->
                s = 1;
                do
                :: s <= base -> did[me].at[s] = did[source].at[s]; s++
                :: else -> break
                od;
                applied[me] = base;
                ready[me] = making
            :: else
            fi
        fi;
        s = 0; source = 0 }
    /* the view is committed: go on in it */
    :: atomic { alive[me] && held > gen[me] && held == heard[me] && ready[me] == held && member[me] -> gen[me] = held }
    /* the first living member saves what it has: asks for the token, and commits */
    :: atomic { alive[me] && applied[me] > manifest && up &&
#ifndef BUG_TOKEN
                gen[me] == held && making == 0 && member[me] && heard[me] == held &&
#endif
                (me == 0 || !IN(0)) && (me <= 1 || !IN(1)) ->
                assert(gen[me] >= manifest_gen);
                assert(gen[me] == held);
                manifest = applied[me]; manifest_gen = gen[me] }
    od
}

proctype Coordinator()
{
    byte i, source;
end:
    do
    :: atomic { over -> break }
    /* dies once; what is not in the log is gone */
    :: atomic { up && crashes < CRASHES -> crashes++; up = false; making = 0; base = 255 }
    :: atomic { !up -> up = true;
#ifdef BUG_FORGET
                logged = held;
#endif
#ifndef BUG_ASLEEP
                start_view() /* members may have heard of a view that came to nothing: make a new one */
#endif
                }
    /* a member of the view that holds, or of the one being made, is dead: a new one without it */
    :: atomic { up && ((member[0] && !alive[0]) || (member[1] && !alive[1]) || (member[2] && !alive[2])) ->
                i = 0;
                do
                :: i < N -> member[i] = member[i] && alive[i]; i++
                :: else -> break
                od;
                i = 0;
                start_view() }
    /* all have reported: the highest step is the base */
    :: atomic { up && making > 0 && base == 255 && (IN(0) || IN(1) || IN(2)) &&
                (!member[0] || heard[0] == making) && (!member[1] || heard[1] == making) &&
                (!member[2] || heard[2] == making) ->
                i = 0; base = 0;
#ifdef BUG_LOWEST
                base = LAST;
#endif
                do
                :: i < N ->
                    if
#ifdef BUG_LOWEST
                    :: member[i] && applied[i] < base -> base = applied[i]
#else
                    :: member[i] && applied[i] > base -> base = applied[i]
#endif
                    :: else
                    fi;
                    i++
                :: else -> break
                od;
                i = 0 }
    /* all are ready: the view holds */
    :: atomic { up && making > 0 && base != 255 && (IN(0) || IN(1) || IN(2)) &&
                (!member[0] || ready[0] == making) && (!member[1] || ready[1] == making) &&
                (!member[2] || ready[2] == making) ->
                assert(making > held); /* no two views have one generation */
                source = (member[0] -> 0 : (member[1] -> 1 : 2));
                if
                :: alive[source] -> check_view()
                :: else
                fi;
                held = making; making = 0; base = 255; source = 0 }
    :: atomic { !over && ((!IN(0) && !IN(1) && !IN(2)) ||
                ((!member[0] || applied[0] == LAST) && (!member[1] || applied[1] == LAST) &&
                 (!member[2] || applied[2] == LAST) && up && making == 0)) -> over = true }
    od
}

proctype Killer()
{
end:
    do
    :: atomic { over || kills == KILLS -> break }
    :: atomic { kills < KILLS && alive[0] -> alive[0] = false; kills++ }
    :: atomic { kills < KILLS && alive[1] -> alive[1] = false; kills++ }
    :: atomic { kills < KILLS && alive[2] -> alive[2] = false; kills++ }
    od
}

init {
    atomic {
        base = 255;
        view[1] = 7;
        run Member(0); run Member(1); run Member(2); run Coordinator(); run Killer()
    }
}

ltl never_stuck { <> over }
