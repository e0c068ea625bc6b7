/* loss_scaler.h -- keeps fp16 gradients inside the range that fp16 can represent.
 *
 * fp16 ends at 65504 and has nothing below 6e-8, where many gradients are. So the loss is
 * multiplied by a power of two before backward (grad_scale of train/step/step_calls.c), and the
 * clip factor of norm2 divides by it again (kernel/kernel.h), which changes no bit of what neither
 * overflowed nor vanished. A step whose gradient overflows is dropped and the scale halved; after
 * `interval` steps without an overflow it is doubled. Example, interval 3:
 *
 *   step        1      2      3      4      5       6
 *   gradient    inf    fine   fine   fine   inf     fine
 *   scale       64     32     32     32     64      32      which the step was made with
 *
 * A non-finite loss cannot be fixed by rescaling: the forward pass itself overflowed. All ranks see
 * the same result of a step, so all have the same scale. It is saved with a checkpoint: resume is
 * exact. */
#pragma once
#include "config/run.h"

LS_C_BEGIN

enum { LS_LOSS_SCALER_MOST = 1 << 24, LS_LOSS_SCALER_TEXT = 96 };

typedef struct ls_loss_scaler {
    bool on;           /* precision: fp16 */
    double scale;      /* of the next step; 1 where it is off */
    int64_t good;      /* steps since it last changed */
    int64_t overflows; /* steps of the run that were dropped */
    int64_t interval;  /* good steps after which it is doubled */
} ls_loss_scaler;

void ls_loss_scaler_init(ls_loss_scaler *scaler, const ls_run *run);

/* After a step: whether its loss was finite, and whether its update was made. True: its gradient
 * overflowed, and a smaller scale may help. False: no overflow to report, or one that rescaling
 * cannot fix. */
bool ls_loss_scaler_step(ls_loss_scaler *scaler, bool loss_finite, bool updated);

/* The state as text, for a checkpoint ("" where it is off), and out of one: LS_EDATA when it cannot
 * be read. Text without it leaves the scaler as it is. */
void ls_loss_scaler_write(const ls_loss_scaler *scaler, char text_out[LS_LOSS_SCALER_TEXT]);
ls_status ls_loss_scaler_read(ls_loss_scaler *scaler, const char *text);

LS_C_END
