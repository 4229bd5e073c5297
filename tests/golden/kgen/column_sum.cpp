// sum_3c71078fc131: m elements, grid 1
// size0: int64 m
// size1: int64 n
// size2: int64 m * n
[[gnu::noinline]] static void sum_3c71078fc131_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ in0 = static_cast<const float*>(buffers[0]);
    float* __restrict__ out0 = static_cast<float*>(buffers[1]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    const int64_t length = share(size0, threads, 1, 1024);
    #pragma omp for schedule(static) nowait
    for (int64_t begin = 0; begin < size0; begin += length) {
        const int64_t end = begin + length < size0 ? begin + length : size0;
        double sum0[1024];
        for (int64_t lane = 0; lane < end - begin; ++lane) sum0[lane] = 0.0;
        for (int64_t start = 0; start < size1; start += 64) {
            const int64_t stop = start + 64 < size1 ? start + 64 : size1;
            float part_of_sum0[1024];
            for (int64_t lane = 0; lane < end - begin; ++lane) part_of_sum0[lane] = 0.0f;
            int64_t few0 = start;
            for (; few0 + 4 <= stop; few0 += 4)
            #pragma omp simd
            for (int64_t i0 = begin; i0 < end; ++i0) {
                float few_of_sum0 = 0.0f;
                #pragma GCC unroll 4
                for (int64_t r1 = few0; r1 < few0 + 4; ++r1) {
                    const int64_t p0 = size0 * r1;
                    const float v0 = in0[p0 + i0];
                    few_of_sum0 = few_of_sum0 + v0;
                }
                part_of_sum0[i0 - begin] = part_of_sum0[i0 - begin] + few_of_sum0;
            }
            for (int64_t r1 = few0; r1 < stop; ++r1) {
                const int64_t p0 = size0 * r1;
                #pragma omp simd
                for (int64_t i0 = begin; i0 < end; ++i0) {
                    const float v0 = in0[p0 + i0];
                    part_of_sum0[i0 - begin] = part_of_sum0[i0 - begin] + v0;
                }
            }
            for (int64_t lane = 0; lane < end - begin; ++lane) sum0[lane] += part_of_sum0[lane];
        }
        #pragma omp simd
        for (int64_t i0 = begin; i0 < end; ++i0) {
            out0[i0] = (float)sum0[i0 - begin];
        }
    }
}
extern "C" void sum_3c71078fc131(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[2] < 16384) threads = 1;
    if (threads == 1) return sum_3c71078fc131_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    sum_3c71078fc131_part(buffers, parameters, status, threads);
}
