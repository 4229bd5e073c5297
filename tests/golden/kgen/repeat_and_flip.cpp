// flip_06d5bb04721c: m * n elements, grid 1
// size0: int64 0 - n
// size1: int64 m
// by0: magic64 m
// size2: int64 1 - m * n
// size3: int64 m * n
// size4: int64 m * n * 2
[[gnu::noinline]] static void flip_06d5bb04721c_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ in0 = static_cast<const float*>(buffers[0]);
    float* __restrict__ out0 = static_cast<float*>(buffers[1]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t by0 = parameters[2];
    const int64_t by0_shift = parameters[3];
    const int64_t size2 = parameters[4];
    const int64_t size3 = parameters[5];
    const int64_t size4 = parameters[6];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for schedule(static) nowait
    for (int64_t begin = 0; begin < size3; begin += 2048) {
        const int64_t end = begin + 2048 < size3 ? begin + 2048 : size3;
        #pragma omp simd
        for (int64_t i0 = begin; i0 < end; ++i0) {
            const float v0 = in0[size0 * i0 + ~divide(~(0 - i0 - 1), by0, by0_shift) * size2];
            out0[i0 * 2] = v0;
            out0[i0 * 2 + 1] = v0;
        }
    }
}
extern "C" void flip_06d5bb04721c(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[6] < 16384) threads = 1;
    if (threads == 1) return flip_06d5bb04721c_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    flip_06d5bb04721c_part(buffers, parameters, status, threads);
}
