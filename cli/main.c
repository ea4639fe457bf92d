#include <dpro/dpro.h>
#include <stdio.h>
int main(void)
{
    puts(dpro_version());
    return 0;
}
