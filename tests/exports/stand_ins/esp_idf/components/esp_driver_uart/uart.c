/* SPDX-License-Identifier: Apache-2.0 */
/* A line that is there from uart_driver_install on, set as a microcontroller's has to be. */
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "driver/uart.h"
#include "esp_cpu.h"
#include "freertos/FreeRTOS.h"
#include "freertos/task.h"
#include "sdkconfig.h"

#ifndef CONFIG_ESP_MAIN_TASK_STACK_SIZE
#define CONFIG_ESP_MAIN_TASK_STACK_SIZE 3584
#endif

static int steps;

void stand_in_check(esp_err_t error)
{
    if (error != 0) {
        exit(9);
    }
}

esp_err_t uart_driver_install(uart_port_t port, int received, int sent, int queue, void *events, int flags)
{
    steps |= 1;
    return port != 0 || received <= 128 || sent != 0 || queue != 0 || events != NULL || flags != 0;
}

esp_err_t uart_param_config(uart_port_t port, const uart_config_t *line)
{
    steps |= 2;
    return port != 0 || line->baud_rate != 115200 || line->data_bits != UART_DATA_8_BITS || line->stop_bits != UART_STOP_BITS_1 ||
           line->parity != UART_PARITY_DISABLE || line->flow_ctrl != UART_HW_FLOWCTRL_DISABLE || line->source_clk != UART_SCLK_DEFAULT;
}

esp_err_t uart_set_pin(uart_port_t port, int tx, int rx, int rts, int cts)
{
    steps |= 4;
    return port != 0 || tx != 43 || rx != 44 || rts != UART_PIN_NO_CHANGE || cts != UART_PIN_NO_CHANGE;
}

esp_err_t uart_set_rx_timeout(uart_port_t port, uint8_t symbols)
{
    steps |= 8;
    return port != 0 || symbols == 0;
}

esp_err_t uart_get_buffered_data_len(uart_port_t port, size_t *size)
{
    int ready = 0;
    *size = ioctl(STDIN_FILENO, FIONREAD, &ready) == 0 ? (size_t)ready : 0;
    return port != 0;
}

/* As many bytes as are asked for: the driver returns earlier only when the time is over. */
int uart_read_bytes(uart_port_t port, void *data, uint32_t size, uint32_t ticks)
{
    uint32_t count = 0;
    while (port == 0 && ticks == portMAX_DELAY && steps == 15 && count < size) {
        const ssize_t more = read(STDIN_FILENO, (char *)data + count, size - count);
        if (more <= 0) {
            return -1;
        }
        count += (uint32_t)more;
    }
    return count > 0 ? (int)count : -1;
}

int uart_write_bytes(uart_port_t port, const void *data, size_t size)
{
    return port == 0 && size > 0 ? (int)write(STDOUT_FILENO, data, size) : -1;
}

uint32_t esp_cpu_get_cycle_count(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)((uint64_t)now.tv_sec * 240000000u + (uint64_t)now.tv_nsec * 24u / 100u);
}

unsigned uxTaskGetStackHighWaterMark(void *task)
{
    return task == NULL ? CONFIG_ESP_MAIN_TASK_STACK_SIZE - 1000u : 0u;
}
