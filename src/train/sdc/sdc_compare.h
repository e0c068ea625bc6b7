/* sdc_compare.h -- ranks that look for silent corruption: bits that changed, and nobody said so.
 *
 * Every heal.compare steps, before a checkpoint is saved and at the end, ranks hash what several of
 * them have: weights, and moments, of everybody (zero 0); own parts against their buddy's copy or
 * those of twins. Where hashes differ the majority is right, and who differs from it is named,
 * leaves the job, and is replaced as one that died. A rank that computed with damaged weights has
 * spoiled the sums of all since then, so nobody keeps its state: all go back to the newest
 * checkpoint, which all had agreed on.
 *
 * Where there is no majority all go back in the same way, and remember what each had. In ordered
 * mode the steps that are done again tell who was right, unless both were spoiled: then nobody is
 * named. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* What stands between the name of a rank and what is wrong with it. */
#define LS_SDC_COMPARE_MARK " is corrupt: "

/* Whether ranks were lost for this reason: one is corrupt, or somebody who cannot be named. */
bool ls_sdc_compare_caused(const char *why);

ls_status ls_sdc_compare_open(ls_session *session); /* the ranks are known, the step is open */
void ls_sdc_compare_close(ls_session *session);     /* at the end of the process */

/* Compare now, by all ranks, after a step; nothing to do alone. LS_EPEER: others are corrupt, or it
 * cannot be told who; LS_EFAIL: this rank is, or nobody heals. */
ls_status ls_sdc_compare_compare(ls_session *session);

/* This rank, or another one, was found to be corrupt: the failure with which each of them goes. */
ls_status ls_sdc_compare_accuse(const ls_session *session, int rank, const char *why);

/* For tests: a bit of this rank's state changes by itself (LINESHAFT_FAULT=train.flip.weight.R.S:
 * on rank R when step S is done; train.flip.moment.R.S, train.flip.copy.R.S likewise). */
void ls_sdc_compare_suffer(ls_session *session);

LS_C_END
