// k0_flip: m * n * 2 elements, grid 1
// size0: int64 1 - m * n
// size_m: int64 m
// by_size_m: magic64 m
// size1: int64 0 - n
// size2: int64 m * n * 2
extern "C" void k0_flip(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ x = static_cast<const float*>(buffers[0]);
    float* __restrict__ flip_4 = static_cast<float*>(buffers[1]);
    const int64_t size0 = parameters[0];
    const int64_t size_m = parameters[1];
    const int64_t by_size_m = parameters[2];
    const int64_t by_size_m_shift = parameters[3];
    const int64_t size1 = parameters[4];
    const int64_t size2 = parameters[5];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    if (size2 < 32768) threads = 1;
    #pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t begin = 0; begin < size2; begin += 4096) {
        const int64_t end = begin + 4096 < size2 ? begin + 4096 : size2;
        #pragma omp simd
        for (int64_t i0 = begin; i0 < end; ++i0) {
            const int64_t p0 = i0 / 2;
            const float v0 = x[size0 * ~divide(~(0 - p0 - 1), by_size_m, by_size_m_shift) + size1 * p0];
            flip_4[i0] = v0;
        }
    }
}
