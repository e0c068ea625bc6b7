/* failover.pml -- which node may make the next view when the coordinator is gone or cut off, for spin: the rules
 * of src/cluster/elect/quorum.c.
 *
 * Three nodes; a cut divides them, heals and divides them again; the first coordinator is node 0. Or NODES=5, of which
 * 1 and 3 (HOPE=10) may lead, the first coordinator is lost, and three cuts follow each other.
 *
 *   enough        more than half of the nodes of a view, or half of them with its first one: who made it
 *   a candidate   raises its term, and asks for votes; a node gives one vote a term (kept on disk), and only to one
 *                 whose newest view is not older than its own (term in which it was offered last, then generation).
 *                 It needs enough of the nodes of its view, and of the view that this was made from, until it is
 *                 known that its own holds
 *   a view        is offered to its nodes by the coordinator of a term; nodes that have heard of no later term accept
 *                 it (on disk). It holds when enough of its nodes, and of those of the view that it was made from,
 *                 have accepted it
 *   coordinator   offers the view that it has once more, in its own term; only when that holds it offers generation
 *                 g + 1. Without this rule three nodes are safe, but five are not: BUG_SKIP
 *
 * With -DRESTARTS coordinators and candidates forget at any moment what is not on disk.
 *
 * What must hold: a generation has one view, whoever made it; and views that hold form one line: each was made
 * from the one before it. Left out with -D: BUG_TWICE (votes are not kept), BUG_OLD (anybody may be voted for),
 * BUG_MINORITY (who is reached is enough), BUG_TIE (half is enough, whoever it is), BUG_SKIP (a view is made from one
 * that may not hold). */
#ifndef NODES
#define NODES 3
#endif
#define N NODES
#define ALL ((1 << N) - 1)
#ifndef HOPE
#define HOPE ALL
#endif
#ifndef TERMS
#define TERMS 3
#endif
#ifndef CUTS
#define CUTS 2
#endif
#if N == 3
#define SPENT (term[0] + term[1] + term[2]) /* keeps the search small */
#else
#define SPENT (term[1] + term[3] + 1)
#endif
#define VIEWS 4 /* generations 1 .. VIEWS - 1 */

byte cut;            /* a bit for each node: which side it is on */
byte cuts;
byte term[N];        /* durable: the highest heard of, */
byte voted[N];       /* whom it voted for in that term (1 + node; 0: nobody), */
byte made[N];        /* the term in which its newest view was offered last, */
byte gen[N];         /* its generation, */
byte mask[N];        /* its members, */
byte first[N];       /* and who made it; */
byte base[N];        /* members of the view that it was made from, and who made that; */
byte bfirst[N];      /* when it is known to hold: the same as its own */
bool lead[N];        /* not durable; coordinator of term[i] */
bool sure[N];        /* as such: its view holds in its term */
byte votes[N];       /* bits, as a candidate in term[i]; 0: none */
byte taken[N];       /* bits: who accepted what it offers; 0: nothing is offered */

byte holds[VIEWS];   /* members of the view that holds, by generation; */
byte holds_from[VIEWS]; /* and of the one it was made from */

#define SAME(i, j) ((cut >> i & 1) == (cut >> j & 1))
#define BIT(i) (1 << (i))
#define COUNT(m) (((m) & 1) + ((m) >> 1 & 1) + ((m) >> 2 & 1) + ((m) >> 3 & 1) + ((m) >> 4 & 1))
#define SIDE(i) ((cut >> (i) & 1) -> cut : ALL & ~cut)
#ifdef BUG_MINORITY
#define ENOUGH(who, of, one) (COUNT((who) & (of)) > 0)
#else
#ifdef BUG_TIE
#define ENOUGH(who, of, one) (2 * COUNT((who) & (of)) >= COUNT(of))
#else
#define ENOUGH(who, of, one) \
    (2 * COUNT((who) & (of)) > COUNT(of) || (2 * COUNT((who) & (of)) == COUNT(of) && ((who) >> (one) & 1)))
#endif
#endif
#define BOTH(who) (ENOUGH(who, mask[me], first[me]) && ENOUGH(who, base[me], bfirst[me]))
#ifdef BUG_OLD
#define UP_TO_DATE(i, j) true
#else
#define UP_TO_DATE(i, j) (made[i] > made[j] || (made[i] == made[j] && gen[i] >= gen[j]))
#endif

inline hear(j, t) /* of a later term: whoever led or hoped in an older one gives up */
{
    if
    :: t > term[j] -> term[j] = t; voted[j] = 0; lead[j] = false; sure[j] = false; votes[j] = 0; taken[j] = 0
    :: else
    fi
}

inline some(j) /* any node */
{
    if
    :: j = 0
    :: j = 1
    :: j = 2
#if N > 3
    :: j = 3
    :: j = 4
#endif
    fi
}

proctype Node(byte me)
{
    byte j;
end:
    do
#ifdef RESTARTS
    /* started again, or tired of leading: what is not on disk is gone */
    :: atomic { lead[me] || votes[me] > 0 -> lead[me] = false; sure[me] = false; votes[me] = 0; taken[me] = 0 }
#endif
    /* hope */
    :: atomic { !lead[me] && (HOPE >> me & 1) && term[me] < TERMS && (mask[me] >> me & 1) && SPENT < 2 * TERMS ->
                term[me]++; voted[me] = me + 1; votes[me] = BIT(me); taken[me] = 0 }
    /* ask for a vote */
    :: atomic { votes[me] > 0 && !lead[me] ->
        some(j);
        if
        :: j != me && SAME(me, j) && term[me] >= term[j] ->
            hear(j, term[me]);
            if
#ifdef BUG_TWICE
            :: UP_TO_DATE(me, j) -> votes[me] = votes[me] | BIT(j)
#else
            :: UP_TO_DATE(me, j) && (voted[j] == 0 || voted[j] == me + 1) ->
                voted[j] = me + 1; votes[me] = votes[me] | BIT(j)
#endif
            :: else
            fi
        :: j != me && SAME(me, j) && term[me] < term[j] -> hear(me, term[j])
        :: else
        fi;
        j = 0 }
    /* elected: offer what it has once more */
    :: atomic { votes[me] > 0 && !lead[me] && BOTH(votes[me]) ->
                lead[me] = true; votes[me] = 0;
#ifdef BUG_SKIP
                sure[me] = true
#else
                made[me] = term[me]; taken[me] = BIT(me)
#endif
                }
    /* offer a view of those on this side, and perhaps fewer */
    :: atomic { lead[me] && sure[me] && gen[me] < VIEWS - 1 && ENOUGH(SIDE(me), mask[me], first[me]) ->
                base[me] = mask[me]; bfirst[me] = first[me];
                if
                :: mask[me] = mask[me] & SIDE(me)
                :: mask[me] = SIDE(me) /* a node that is back joins */
                fi;
                gen[me]++; made[me] = term[me]; first[me] = me; taken[me] = BIT(me); sure[me] = false }
    /* to its nodes; a node that has it already hears that it holds */
    :: atomic { lead[me] && (taken[me] > 0 || sure[me]) ->
        some(j);
        if
        :: j != me && SAME(me, j) && term[j] <= term[me] && (mask[me] >> j & 1) ->
            hear(j, term[me]);
            gen[j] = gen[me]; made[j] = made[me]; mask[j] = mask[me]; first[j] = first[me];
            base[j] = base[me]; bfirst[j] = bfirst[me];
            if
            :: taken[me] > 0 -> taken[me] = taken[me] | BIT(j)
            :: else
            fi
        :: j != me && SAME(me, j) && term[j] > term[me] -> hear(me, term[j])
        :: else
        fi;
        j = 0 }
    /* it holds */
    :: atomic { lead[me] && taken[me] > 0 && BOTH(taken[me]) ->
                assert(holds[gen[me]] == 0 || holds[gen[me]] == mask[me]);
                if
                :: holds[gen[me]] == 0 ->
                    assert(holds[gen[me] - 1] == 0 || holds[gen[me] - 1] == base[me]);
                    holds_from[gen[me]] = base[me]
                :: else
                fi;
                if
                :: gen[me] < VIEWS - 1 -> assert(holds_from[gen[me] + 1] == 0 || holds_from[gen[me] + 1] == mask[me])
                :: else
                fi;
                holds[gen[me]] = mask[me];
                taken[me] = 0; sure[me] = true; base[me] = mask[me]; bfirst[me] = first[me] }
    od
}

proctype Cutter()
{
end:
    do
#if N == 3
    :: atomic { cuts < CUTS -> cuts++;
        if
        :: cut = 0
        :: cut = 1
        :: cut = 2
        :: cut = 4
        fi }
#else /* 0 1 2 | 3 4, then 1 2 3 | 0 4, then 0 3 4 | 1 2 */
    :: atomic { cuts < 2 -> cuts++; cut = (cuts == 1 -> 14 : 25) }
#endif
    :: cuts == CUTS -> break
    od
}

init {
    byte i;
    atomic {
        do
        :: i < N ->
            term[i] = 1; voted[i] = 1; gen[i] = 1; mask[i] = ALL; base[i] = ALL; i++
        :: else -> break
        od;
        i = 0;
        lead[0] = HOPE & 1; sure[0] = HOPE & 1; /* or it is lost from the beginning */
        holds[1] = ALL; holds_from[1] = ALL;
#if N == 3
        run Node(0); run Node(1); run Node(2);
#else
        cut = 7;
        run Node(1); run Node(3); /* the others do nothing by themselves */
#endif
        run Cutter()
    }
}
