/* loss_scaler.c -- see loss_scaler.h. */
#include "optim/loss_scaler.h"

#include <math.h>
#include "base/err.h"

void ls_loss_scaler_init(ls_loss_scaler *scaler, const ls_run *run)
{
    bool on = run->precision == LS_PRECISION_FP16;

    *scaler = (ls_loss_scaler){.on = on,
                               .scale = on ? (double)run->train.loss_scale : 1,
                               .interval = run->train.loss_scale_interval};
}

bool ls_loss_scaler_step(ls_loss_scaler *s, bool loss_finite, bool updated)
{
    if (!s->on)
        return false;
    if (updated) {
        s->good++;
        if (s->good >= s->interval) {
            s->good = 0;
            s->scale = fmin(2 * s->scale, LS_LOSS_SCALER_MOST);
        }
        return false;
    }
    if (!loss_finite || s->scale <= 1)
        return false;
    s->good = 0;
    s->scale /= 2;
    s->overflows++;
    return true;
}

void ls_loss_scaler_write(const ls_loss_scaler *scaler, char text_out[LS_LOSS_SCALER_TEXT])
{
    text_out[0] = '\0';
    if (scaler->on)
        snprintf(text_out, LS_LOSS_SCALER_TEXT, " loss_scale=%.0f good=%lld overflows=%lld",
                 scaler->scale, (long long)scaler->good, (long long)scaler->overflows);
}

ls_status ls_loss_scaler_read(ls_loss_scaler *scaler, const char *text)
{
    const char *at = strstr(text, " loss_scale=");
    long long scale, good, overflows;
    char end;

    if (!scaler->on || !at)
        return LS_OK;
    if (sscanf(at, " loss_scale=%lld good=%lld overflows=%lld%c", &scale, &good, &overflows,
               &end) != 3 ||
        scale < 1 || scale > LS_LOSS_SCALER_MOST || (scale & (scale - 1)) || good < 0 ||
        overflows < 0)
        return ls_fail(LS_EDATA, "the checkpoint's loss scale cannot be read: \"%s\"", at + 1);
    scaler->scale = (double)scale;
    scaler->good = good;
    scaler->overflows = overflows;
    return LS_OK;
}
