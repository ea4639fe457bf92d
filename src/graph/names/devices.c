/* Peaks of devices: dense matrices, boost clock, one device as PyTorch counts them. From NVIDIA's
 * data sheets (P100, V100, T4, A10, A40, A100, L4, L40, L40S, H20, H100, H200, GH200, B200; RTX
 * A6000) and architecture white papers (Turing, Ampere GA102, Ada: 16 bits with 32-bit
 * accumulation), and AMD's (CDNA 2 and CDNA 3; MI250 has two devices). */
#include "graph/graph.h"

#define T 1e12
#define ROW(word, more, fp64, fp32, tf32, bits16, bits8, gb_per_s)                                 \
    {                                                                                              \
        {word, more}, {(fp64)*T, (fp32)*T, (bits16)*T, (bits8)*T}, (tf32)*T, (gb_per_s)*1e9        \
    }

/* The first row that fits. */
static const struct device_peak devices[] = {
    ROW("B200", NULL, 37, 75, 1100, 2250, 4500, 7700),
    ROW("GH200", NULL, 34, 67, 494, 989, 1979, 4000),
    ROW("H200", NULL, 34, 67, 494, 989, 1979, 4800),
    ROW("H100", "PCIe", 26, 51, 378, 756, 1513, 2000),
    ROW("H100", "NVL", 30, 60, 417, 835, 1671, 3900),
    ROW("H100", NULL, 34, 67, 494, 989, 1979, 3350),
    ROW("H800", NULL, 1, 67, 494, 989, 1979, 3350),
    ROW("H20", NULL, 1, 44, 74, 148, 296, 4000),
    ROW("A100", "80GB", 9.7, 19.5, 156, 312, 624, 2039),
    ROW("A100", NULL, 9.7, 19.5, 156, 312, 624, 1555),
    ROW("A800", NULL, 9.7, 19.5, 156, 312, 624, 2039),
    ROW("A40", NULL, 0.6, 37.4, 74.8, 149.7, 299.3, 696),
    ROW("A10", NULL, 0.5, 31.2, 62.5, 125, 250, 600),
    ROW("A10G", NULL, 0.5, 31.5, 35, 70, 140, 600),
    ROW("L40S", NULL, 1.4, 91.6, 183, 362, 733, 864),
    ROW("L40", NULL, 1.4, 90.5, 90.5, 181, 362, 864),
    ROW("L4", NULL, 0.5, 30.3, 60, 121, 242, 300),
    ROW("T4", NULL, 0.25, 8.1, 0, 65, 130, 320),
    ROW("V100", "SXM2", 7.8, 15.7, 0, 125, 0, 900),
    ROW("V100", NULL, 7, 14, 0, 112, 0, 900),
    ROW("P100", NULL, 5.3, 10.6, 0, 21.2, 0, 732),
    ROW("A6000", NULL, 0.6, 38.7, 77.4, 154.8, 309.7, 768),
    ROW("RTX 4090", NULL, 1.3, 82.6, 82.6, 165.2, 330.3, 1008),
    ROW("RTX 3090", NULL, 0.56, 35.6, 35.6, 71, 284, 936),
    ROW("RTX 2080 Ti", NULL, 0.42, 14.2, 0, 56.9, 227.7, 616),
    ROW("MI325X", NULL, 81.7, 163.4, 653.7, 1307.4, 2614.9, 6000),
    ROW("MI300X", NULL, 81.7, 163.4, 653.7, 1307.4, 2614.9, 5300),
    ROW("MI250X", NULL, 23.9, 47.9, 0, 191.5, 0, 1638),
};

/* As a word of its own: "A10" is not in "A100". */
static bool has_word(const char *name, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = name; (at = strstr(at, word)); at++)
        if ((at == name || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[len]))
            return true;
    return false;
}

const struct device_peak *device_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (has_word(name, devices[i].words[0]) &&
            (!devices[i].words[1] || has_word(name, devices[i].words[1])))
            return &devices[i];
    return NULL;
}
