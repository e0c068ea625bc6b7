/* rng.c -- normal values by inverting the distribution function.
 *
 * Wichura's algorithm AS 241 (PPND16, Applied Statistics 37, 1988) turns one uniform into one
 * normal value: no pairs as in Box-Muller, so that value number i needs only block i/2, and no sin
 * or cos of the C library, whose last bit differs between machines. The tails need a logarithm;
 * ours is made of additions, multiplications and one division in double, so equal everywhere. */
#include "base/rng.h"

#include <math.h>

/* ln(x) for normal x > 0: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh(s) with
 * s = (m-1)/(m+1), |s| < 0.172: the odd series to s^21 is exact to double precision. */
static double plain_log(double x)
{
    int e;
    double m = frexp(x, &e); /* exact */

    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int k = 21; k >= 1; k -= 2)
        sum = sum * s2 + 1.0 / k;
    return 2 * s * sum + e * 0.69314718055994530942;
}

static double polynomial(const double *c, double x)
{
    double y = c[7];

    for (int i = 6; i >= 0; i--)
        y = y * x + c[i];
    return y;
}

/* Coefficients of AS 241, constant term first. */
static const double central_num[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                      1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                      4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                      3.3430575583588128105e+4, 2.5090809287301226727e+3};
static const double central_den[8] = {1.0,
                                      4.2313330701600911252e+1,
                                      6.8718700749205790830e+2,
                                      5.3941960214247511077e+3,
                                      2.1213794301586595867e+4,
                                      3.9307895800092710610e+4,
                                      2.8729085735721942674e+4,
                                      5.2264952788528545610e+3};
static const double middle_num[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                     5.76949722146069140550e0,  3.64784832476320460504e0,
                                     1.27045825245236838258e0,  2.41780725177450611770e-1,
                                     2.27238449892691845833e-2, 7.74545014278341407640e-4};
static const double middle_den[8] = {1.0,
                                     2.05319162663775882187e0,
                                     1.67638483018380384940e0,
                                     6.89767334985100004550e-1,
                                     1.48103976427480074590e-1,
                                     1.51986665636164571966e-2,
                                     5.47593808499534494600e-4,
                                     1.05075007164441684324e-9};
static const double tail_num[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                   1.78482653991729133580e0,  2.96560571828504891230e-1,
                                   2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
static const double tail_den[8] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};

static double normal_quantile(double p)
{
    double q = p - 0.5;

    if (fabs(q) <= 0.425) {
        double r = 0.180625 - q * q;
        return q * polynomial(central_num, r) / polynomial(central_den, r);
    }
    double r = sqrt(-plain_log(q < 0 ? p : 1 - p));
    double v = r <= 5 ? polynomial(middle_num, r - 1.6) / polynomial(middle_den, r - 1.6)
                      : polynomial(tail_num, r - 5) / polynomial(tail_den, r - 5);
    return q < 0 ? -v : v;
}

void ls_rng_normal(ls_rng_key key, uint64_t first, uint64_t count, float *values_out)
{
    ls_rng_block b = {{0}};

    for (uint64_t i = 0; i < count; i++) {
        uint64_t n = first + i, block = n / 2;
        if (i == 0 || n % 2 == 0) /* a block has two values */
            b = ls_rng_philox(key, (uint32_t)block, (uint32_t)(block >> 32), 0, 0);
        uint64_t bits = (uint64_t)b.v[2 * (n & 1)] << 32 | b.v[2 * (n & 1) + 1];
        double p = ((double)(bits >> 12) + 0.5) * 0x1p-52; /* in (0, 1), never the ends */
        values_out[i] = (float)normal_quantile(p);
    }
}
