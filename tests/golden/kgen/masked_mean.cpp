// sum_909e36baf945: b * 40 elements, grid 1
// size0: int64 s
// size1: int64 s * 40
// size2: int64 b
// size3: int64 b * s * 40
[[gnu::noinline]] static void sum_909e36baf945_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const int64_t* __restrict__ in0 = static_cast<const int64_t*>(buffers[0]);
    const float* __restrict__ in1 = static_cast<const float*>(buffers[1]);
    float* __restrict__ out0 = static_cast<float*>(buffers[2]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    const int64_t size3 = parameters[3];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for schedule(static) nowait
    for (int64_t i0 = 0; i0 < size2; ++i0) {
        const int64_t p0 = size0 * i0;
        const int64_t p4 = size1 * i0;
        double sum0[40];
        for (int64_t lane = 0; lane < 40; ++lane) sum0[lane] = 0.0;
        for (int64_t start = 0; start < size0; start += 128) {
            const int64_t stop = start + 128 < size0 ? start + 128 : size0;
            float part_of_sum0[40];
            for (int64_t lane = 0; lane < 40; ++lane) part_of_sum0[lane] = 0.0f;
            for (int64_t r2 = start; r2 < stop; ++r2) {
                const int64_t p1 = p0 + r2;
                const int64_t p2 = in0[p1];
                const float v0 = (float)p2;
                const int64_t p3 = r2 * 40;
                const int64_t p5 = p3 + p4;
                #pragma omp simd
                for (int64_t i1 = 0; i1 < 40; ++i1) {
                    const float v1 = in1[p5 + i1];
                    part_of_sum0[i1] = part_of_sum0[i1] + v0 * v1;
                }
            }
            for (int64_t lane = 0; lane < 40; ++lane) sum0[lane] += part_of_sum0[lane];
        }
        const int64_t p6 = i0 * 40;
        #pragma omp simd
        for (int64_t i1 = 0; i1 < 40; ++i1) {
            out0[p6 + i1] = (float)sum0[i1];
        }
    }
}
extern "C" void sum_909e36baf945(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[3] < 16384) threads = 1;
    if (threads == 1) return sum_909e36baf945_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    sum_909e36baf945_part(buffers, parameters, status, threads);
}

// div_25bbe76f4b96: b * 40 elements, grid 1
// size0: int64 s
// size1: int64 b
// size2: int64 b * 80
[[gnu::noinline]] static void div_25bbe76f4b96_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const int64_t* __restrict__ in0 = static_cast<const int64_t*>(buffers[0]);
    const float* __restrict__ in1 = static_cast<const float*>(buffers[1]);
    float* __restrict__ out0 = static_cast<float*>(buffers[2]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for schedule(static) nowait
    for (int64_t i0 = 0; i0 < size1; ++i0) {
        const int64_t p0 = size0 * i0;
        double sum0 = 0.0;
        for (int64_t start = 0; start < size0; start += 4096) {
            const int64_t stop = start + 4096 < size0 ? start + 4096 : size0;
            float part_of_sum0 = 0.0f;
            int64_t strip0 = start;
            if (strip0 + 32 <= stop) {
                float part_of_sum0_lanes[32];
                for (int64_t lane = 0; lane < 32; ++lane) part_of_sum0_lanes[lane] = 0.0f;
                for (; strip0 + 32 <= stop; strip0 += 32)
                #pragma omp simd
                for (int64_t r2 = strip0; r2 < strip0 + 32; ++r2) {
                    const int64_t p1 = in0[p0 + r2];
                    part_of_sum0_lanes[r2 - strip0] = part_of_sum0_lanes[r2 - strip0] + (float)p1;
                }
                part_of_sum0 = part_of_sum0 + join_lanes<32>(part_of_sum0_lanes, Add());
            }
            #pragma omp simd reduction(+:part_of_sum0)
            for (int64_t r2 = strip0; r2 < stop; ++r2) {
                const int64_t p1 = in0[p0 + r2];
                part_of_sum0 = part_of_sum0 + (float)p1;
            }
            sum0 += part_of_sum0;
        }
        const int64_t p2 = i0 * 40;
        const float v1 = max_of(1e-09f, (float)sum0);
        float* const row0 = scratch<float, 0>(40);
        float sum1 = 0.0f;
        #pragma omp simd reduction(+:sum1)
        for (int64_t i1 = 0; i1 < 40; ++i1) {
            const float v0 = in1[p2 + i1];
            const float v2 = v0 / v1;
            row0[i1] = v2;
            sum1 = sum1 + v2 * v2;
        }
        const float v3 = sqrtf(sum1);
        const float v4 = max_of(1e-12f, v3);
        #pragma omp simd
        for (int64_t i1 = 0; i1 < 40; ++i1) {
            out0[p2 + i1] = row0[i1] / v4;
        }
    }
}
extern "C" void div_25bbe76f4b96(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[2] < 16384) threads = 1;
    if (threads == 1) return div_25bbe76f4b96_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    div_25bbe76f4b96_part(buffers, parameters, status, threads);
}
