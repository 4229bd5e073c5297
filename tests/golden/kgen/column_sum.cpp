// k0_sum: m elements, grid 1
// size_m: int64 m
// size_n: int64 n
// size0: int64 m * n
extern "C" void k0_sum(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ x = static_cast<const float*>(buffers[0]);
    float* __restrict__ sum_0 = static_cast<float*>(buffers[1]);
    const int64_t size_m = parameters[0];
    const int64_t size_n = parameters[1];
    const int64_t size0 = parameters[2];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    if (size0 < 32768) threads = 1;
    #pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t begin = 0; begin < size_m; begin += 256) {
        const int64_t end = begin + 256 < size_m ? begin + 256 : size_m;
        double sum0[256];
        for (int64_t lane = 0; lane < 256; ++lane) sum0[lane] = 0.0;
        for (int64_t start = 0; start < size_n; start += 128) {
            const int64_t stop = start + 128 < size_n ? start + 128 : size_n;
            float part_of_sum0[256];
            for (int64_t lane = 0; lane < 256; ++lane) part_of_sum0[lane] = 0.0f;
            for (int64_t r1 = start; r1 < stop; ++r1) {
                const int64_t p0 = size_m * r1;
                #pragma omp simd
                for (int64_t i0 = begin; i0 < end; ++i0) {
                    const float v0 = x[p0 + i0];
                    part_of_sum0[i0 - begin] = part_of_sum0[i0 - begin] + v0;
                }
            }
            for (int64_t lane = 0; lane < 256; ++lane) sum0[lane] += part_of_sum0[lane];
        }
        #pragma omp simd
        for (int64_t i0 = begin; i0 < end; ++i0) {
            sum_0[i0] = (float)sum0[i0 - begin];
        }
    }
}
