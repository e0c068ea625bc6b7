/* tile.cuh -- one tile of a product, 128 x 256, by a block of 256 threads: sum over k of a(i, k)
 * b(j, k), for operands in row-major or column-major order, summed in fp32 in an order that depends
 * on the number of k only.
 *
 * 16 bits: tensor cores. Both operands come in stages of 64 k through shared memory by cp.async, in
 * the layout that Hopper's instructions read (128 bytes swizzled by 16 in groups of 8 lines, which
 * ldmatrix reads without conflicts, too):
 *
 *   a line along k     line i: 64 k of row i; 16 bytes c lie at c ^ (i % 8)
 *   a line along rows  line k of part h: rows 64 h .. 64 h + 63 of k; 16 bytes c at c ^ (k % 8)
 *
 * With sm_90a two warpgroups have 64 rows each (wgmma, operands out of shared memory); elsewhere
 * eight warps have 64 x 64 each (mma.sync). A tile is as large as registers allow: with 128 x 128
 * the second cache could not bring operands as fast as Hopper multiplies them. fp32: plain fma,
 * 8 x 16 for each thread.
 *
 * What lies outside of an operand counts as 0. WIDE: rows, strides and pointers allow accesses of
 * 16 bytes; without it elements are read one by one, for odd shapes. */
#pragma once
#include "kernel/cuda/common.cuh"

enum {
    LS_TILE_ROWS = 128, /* of a */
    LS_TILE_COLUMNS = 256,
    LS_TILE_THREADS = 256,
    LS_TILE_ALL = LS_TILE_ROWS * LS_TILE_COLUMNS,
    LS_TILE_SUMS = LS_TILE_ALL / LS_TILE_THREADS, /* of a thread */
    LS_TILE_DEPTH = 64,                           /* k of a stage */
    LS_TILE_PART = 64 * LS_TILE_DEPTH * 2,        /* bytes of 64 rows, either way */
    LS_TILE_A = LS_TILE_ROWS / 64 * LS_TILE_PART,
    LS_TILE_STAGE = LS_TILE_A + LS_TILE_COLUMNS / 64 * LS_TILE_PART,
    LS_TILE_SLOTS = 4, /* stages that are in shared memory, at most; at least 2 */
    LS_TILE_ALIGN = 1024,
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LS_TILE_WGMMA 1
#else
#define LS_TILE_WGMMA 0
#endif

/* Element (row, k) is at p[row * ld + k], or p[k * ld + row] where the operand is turned. */
template <typename T> struct ls_operand {
    const T *p;
    int64_t ld;
    int rows;
};

__device__ inline uint32_t ls_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The shared memory of a kernel, aligned as tiles want it. */
__device__ inline char *ls_tile_shared(char *raw)
{
    return raw + (LS_TILE_ALIGN - ls_shared_address(raw) % LS_TILE_ALIGN) % LS_TILE_ALIGN;
}

/* --- 16 bits ---------------------------------------------------------------------------------- */

template <typename T, bool WIDE> struct ls_tile_half {
    typedef T type;

    static int shared(int slots)
    {
        return slots * LS_TILE_STAGE + LS_TILE_ALIGN;
    }

    /* 16 bytes into shared memory; `valid` elements of them are there. */
    static __device__ void take(char *to, const T *from, int valid)
    {
        if constexpr (WIDE) {
            asm volatile(
                "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(ls_shared_address(to)),
                "l"(from), "r"(valid > 0 ? 16 : 0)
                : "memory");
        } else {
            union {
                T x[8];
                uint4 bits;
            } u;
            u.bits = make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < valid)
                    u.x[i] = from[i];
            *reinterpret_cast<uint4 *>(to) = u.bits;
        }
    }

    /* One operand of a stage, of ROWS rows: k0 .. k0 + 63. */
    template <int ROWS, bool TURNED>
    static __device__ void load(const ls_operand<T> &x, int k0, int depth, char *to)
    {
#pragma unroll
        for (int i = 0; i < ROWS * LS_TILE_DEPTH / 8 / LS_TILE_THREADS; i++) {
            int at = (int)threadIdx.x + i * LS_TILE_THREADS;
            if constexpr (TURNED) {
                int k = at / (ROWS / 8), c = at % (ROWS / 8);
                int valid = k0 + k < depth ? x.rows - c * 8 : 0;
                take(to + c / 8 * LS_TILE_PART + k * 128 + ((c % 8 ^ k % 8) << 4),
                     valid > 0 ? x.p + (k0 + k) * x.ld + c * 8 : x.p, valid);
            } else {
                int row = at / 8, c = at % 8, valid = row < x.rows ? depth - k0 - c * 8 : 0;
                take(to + row * 128 + ((c ^ row % 8) << 4),
                     valid > 0 ? x.p + row * x.ld + k0 + c * 8 : x.p, valid);
            }
        }
    }

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void load_both(const ls_operand<T> &a, const ls_operand<T> &b, int number,
                                     int stages, int slots, int depth, char *shared)
    {
        char *to = shared + number % slots * LS_TILE_STAGE;

        if (number < stages) {
            load<LS_TILE_ROWS, A_TURNED>(a, number * LS_TILE_DEPTH, depth, to);
            load<LS_TILE_COLUMNS, B_TURNED>(b, number * LS_TILE_DEPTH, depth, to + LS_TILE_A);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory"); /* empty ones keep the count */
    }

#if LS_TILE_WGMMA
    /* Where wgmma finds an operand: address, from 64 rows to the next, from 8 lines to the next. */
    static __device__ uint64_t describe(const char *p)
    {
        return (uint64_t)(ls_shared_address(p) >> 4 & 0x3fff) |
               (uint64_t)(LS_TILE_PART >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
               (uint64_t)1 << 62;
    }

#define LS_SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define LS_SUMS_32(i)                                                                       \
    LS_SUMS_4(i), LS_SUMS_4(i + 4), LS_SUMS_4(i + 8), LS_SUMS_4(i + 12), LS_SUMS_4(i + 16), \
        LS_SUMS_4(i + 20), LS_SUMS_4(i + 24), LS_SUMS_4(i + 28)
#define LS_WGMMA(name)                                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                              \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name               \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "   \
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "   \
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "   \
                 "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "   \
                 "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "   \
                 "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "   \
                 "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
                 "%124, %125, %126, %127}, %128, %129, p, 1, 1, %131, %132;\n}\n"           \
                 : LS_SUMS_32(0), LS_SUMS_32(32), LS_SUMS_32(64), LS_SUMS_32(96)            \
                 : "l"(a), "l"(b), "r"(1), "n"(A_TURNED ? 1 : 0), "n"(B_TURNED ? 1 : 0))

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void multiply(float (&sum)[LS_TILE_SUMS], uint64_t a, uint64_t b)
    {
        if constexpr (std::is_same<T, ls_bf16>::value)
            LS_WGMMA("bf16");
        else
            LS_WGMMA("f16");
    }

    /* Queued: it goes on while the next stages are asked for. */
    template <bool A_TURNED, bool B_TURNED>
    static __device__ void stage(float (&sum)[LS_TILE_SUMS], const char *a, const char *b)
    {
        a += threadIdx.x / 128 * LS_TILE_PART;
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
        for (int k = 0; k < LS_TILE_DEPTH / 16; k++)
            multiply<A_TURNED, B_TURNED>(sum, describe(a + k * (A_TURNED ? 2048 : 32)),
                                         describe(b + k * (B_TURNED ? 2048 : 32)));
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    }

    /* sum = the tile's product over `depth` k. While stage i is multiplied, i - 1 may still be; so
     * what is loaded then takes the place of i - 2. */
    template <bool A_TURNED, bool B_TURNED>
    static __device__ void run(float (&sum)[LS_TILE_SUMS], const ls_operand<T> &a,
                               const ls_operand<T> &b, int depth, char *shared, int)
    {
        int stages = (depth + LS_TILE_DEPTH - 1) / LS_TILE_DEPTH;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i++)
            sum[i] = 0;
        __syncthreads(); /* the tile before this one has been read */
        for (int i = 0; i < LS_TILE_SLOTS - 2; i++)
            load_both<A_TURNED, B_TURNED>(a, b, i, stages, LS_TILE_SLOTS, depth, shared);
        for (int i = 0; i < stages; i++) {
            const char *at = shared + i % LS_TILE_SLOTS * LS_TILE_STAGE;
            asm volatile("cp.async.wait_group %0;\n" ::"n"(LS_TILE_SLOTS - 3) : "memory");
            asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
            __syncthreads(); /* stage i is there, and i - 2 has been read by all */
            stage<A_TURNED, B_TURNED>(sum, at, at + LS_TILE_A);
            load_both<A_TURNED, B_TURNED>(a, b, i + LS_TILE_SLOTS - 2, stages, LS_TILE_SLOTS, depth,
                                          shared);
            asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
        asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    }

    /* f(row, column, two sums side by side) for all that this thread has. */
    template <typename F> static __device__ void each(float (&sum)[LS_TILE_SUMS], F f)
    {
        int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
        int column = (int)threadIdx.x % 4 * 2;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i += 2)
            f(row + i / 2 % 2 * 8, column + i / 4 * 8, sum[i], sum[i + 1]);
    }
#else
    template <bool TURNED>
    static __device__ void fragments(const char *p, int line, int c, uint32_t (&r)[4])
    {
        uint32_t at;

        if constexpr (TURNED) { /* line: k; c: 16 bytes of rows */
            at = ls_shared_address(p + c / 8 * LS_TILE_PART + line * 128 +
                                   ((c % 8 ^ line % 8) << 4));
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                         : "r"(at)
                         : "memory");
        } else { /* line: row; c: 16 bytes of k */
            at = ls_shared_address(p + line * 128 + ((c ^ line % 8) << 4));
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                         : "r"(at)
                         : "memory");
        }
    }

#define LS_MMA(name)                                                                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "      \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

    static __device__ void multiply(float *sum, const uint32_t (&a)[4], const uint32_t *b)
    {
        if constexpr (std::is_same<T, ls_bf16>::value)
            LS_MMA("bf16");
        else
            LS_MMA("f16");
    }

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void stage(float (&sum)[LS_TILE_SUMS], const char *a, const char *b)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, low = lane % 8;
        int row = warp / 4 * 64, column = warp % 4 * 64, mid = lane / 8 % 2, high = lane / 16;

#pragma unroll
        for (int k = 0; k < LS_TILE_DEPTH; k += 16) {
            uint32_t of_b[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                if constexpr (B_TURNED)
                    fragments<true>(b, k + low + mid * 8, column / 8 + j * 2 + high, of_b[j]);
                else
                    fragments<false>(b, column + j * 16 + low + high * 8, k / 8 + mid, of_b[j]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t of_a[4];
                if constexpr (A_TURNED)
                    fragments<true>(a, k + low + high * 8, row / 8 + i * 2 + mid, of_a);
                else
                    fragments<false>(a, row + i * 16 + low + mid * 8, k / 8 + high, of_a);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    multiply(&sum[(i * 8 + j) * 4], of_a, &of_b[j / 2][j % 2 * 2]);
            }
        }
    }

    /* All but the last n groups of copies have come. */
    static __device__ void await(int n)
    {
        if (n >= 2)
            asm volatile("cp.async.wait_group 2;\n" ::: "memory");
        else if (n == 1)
            asm volatile("cp.async.wait_group 1;\n" ::: "memory");
        else
            asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    }

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void run(float (&sum)[LS_TILE_SUMS], const ls_operand<T> &a,
                               const ls_operand<T> &b, int depth, char *shared, int slots)
    {
        int stages = (depth + LS_TILE_DEPTH - 1) / LS_TILE_DEPTH;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i++)
            sum[i] = 0;
        __syncthreads(); /* the tile before this one has been read */
        for (int i = 0; i < slots - 1; i++)
            load_both<A_TURNED, B_TURNED>(a, b, i, stages, slots, depth, shared);
        for (int i = 0; i < stages; i++) {
            const char *at = shared + i % slots * LS_TILE_STAGE;
            await(slots - 2);
            __syncthreads(); /* stage i is there, and i - 1 has been read by all */
            load_both<A_TURNED, B_TURNED>(a, b, i + slots - 1, stages, slots, depth, shared);
            stage<A_TURNED, B_TURNED>(sum, at, at + LS_TILE_A);
        }
        await(0);
    }

    template <typename F> static __device__ void each(float (&sum)[LS_TILE_SUMS], F f)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        int row = warp / 4 * 64 + lane / 4, column = warp % 4 * 64 + lane % 4 * 2;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i += 2)
            f(row + i / 32 * 16 + i / 2 % 2 * 8, column + i / 4 % 8 * 8, sum[i], sum[i + 1]);
    }
#endif
};

/* --- fp32 ------------------------------------------------------------------------------------- */

struct ls_tile_float {
    typedef float type;
    enum { DEPTH = 16, PITCH_A = LS_TILE_ROWS + 4, PITCH_B = LS_TILE_COLUMNS + 4 };

    static int shared(int slots)
    {
        (void)slots;
        return DEPTH * (PITCH_A + PITCH_B) * (int)sizeof(float) + LS_TILE_ALIGN;
    }

    template <int ROWS, bool TURNED>
    static __device__ void load(const ls_operand<float> &x, int k0, int depth, float *to)
    {
#pragma unroll
        for (int i = 0; i < ROWS * DEPTH / LS_TILE_THREADS; i++) {
            int at = (int)threadIdx.x + i * LS_TILE_THREADS;
            int row = TURNED ? at % ROWS : at / DEPTH, k = TURNED ? at / ROWS : at % DEPTH;
            bool there = row < x.rows && k0 + k < depth;
            int64_t from = TURNED ? (k0 + k) * x.ld + row : row * x.ld + k0 + k;
            to[k * (ROWS + 4) + row] = there ? x.p[from] : 0.0f;
        }
    }

    template <bool A_TURNED, bool B_TURNED>
    static __device__ void run(float (&sum)[LS_TILE_SUMS], const ls_operand<float> &a,
                               const ls_operand<float> &b, int depth, char *shared, int)
    {
        float *as = reinterpret_cast<float *>(shared), *bs = as + DEPTH * PITCH_A;
        int row = (int)threadIdx.x / 16 * 8, pair = (int)threadIdx.x % 16 * 2;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i++)
            sum[i] = 0;
        for (int k0 = 0; k0 < depth; k0 += DEPTH) {
            __syncthreads();
            load<LS_TILE_ROWS, A_TURNED>(a, k0, depth, as);
            load<LS_TILE_COLUMNS, B_TURNED>(b, k0, depth, bs);
            __syncthreads();
#pragma unroll 4
            for (int k = 0; k < DEPTH; k++) {
                float x[8], y[16];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    x[i] = as[k * PITCH_A + row + i];
#pragma unroll
                for (int j = 0; j < 16; j++)
                    y[j] = bs[k * PITCH_B + j / 2 * 32 + pair + j % 2];
#pragma unroll
                for (int i = 0; i < LS_TILE_SUMS; i++)
                    sum[i] = fmaf(x[i / 16], y[i % 16], sum[i]);
            }
        }
    }

    template <typename F> static __device__ void each(float (&sum)[LS_TILE_SUMS], F f)
    {
        int row = (int)threadIdx.x / 16 * 8, pair = (int)threadIdx.x % 16 * 2;

#pragma unroll
        for (int i = 0; i < LS_TILE_SUMS; i += 2)
            f(row + i / 16, i % 16 / 2 * 32 + pair, sum[i], sum[i + 1]);
    }
};
