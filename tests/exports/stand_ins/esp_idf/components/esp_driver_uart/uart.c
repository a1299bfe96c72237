/* SPDX-License-Identifier: Apache-2.0 */
/* A line that is there from uart_driver_install on, set as a microcontroller's has to be; tasks are threads. */
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "driver/uart.h"
#include "esp_cpu.h"
#include "freertos/FreeRTOS.h"
#include "freertos/semphr.h"
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

BaseType_t xPortGetCoreID(void)
{
    return 0;
}

UBaseType_t uxTaskPriorityGet(TaskHandle_t task)
{
    return task == NULL ? 1 : 0;
}

static void *start(void *task)
{
    ((TaskHandle_t)task)->code(((TaskHandle_t)task)->argument);
    exit(9); /* a task never returns */
}

TaskHandle_t xTaskCreateStaticPinnedToCore(void (*code)(void *), const char *name, uint32_t stack_bytes, void *argument,
                                           UBaseType_t priority, StackType_t *stack, StaticTask_t *task, BaseType_t core)
{
    if (steps != 15 || name == NULL || stack_bytes < 2048 || priority != 1 || stack == NULL || core != 1) {
        exit(9);
    }
    *task = (StaticTask_t){.code = code, .argument = argument, .stack_bytes = stack_bytes};
    stand_in_check(pthread_create(&task->thread, NULL, start, task));
    return task;
}

UBaseType_t uxTaskGetStackHighWaterMark(TaskHandle_t task)
{
    return task == NULL ? CONFIG_ESP_MAIN_TASK_STACK_SIZE - 1000u : task->stack_bytes - 600u;
}

SemaphoreHandle_t xSemaphoreCreateBinaryStatic(StaticSemaphore_t *semaphore)
{
    stand_in_check(sem_init(semaphore, 0, 0));
    return semaphore;
}

/* A binary semaphore that was given already stays as it is: pdFALSE. */
BaseType_t xSemaphoreGive(SemaphoreHandle_t semaphore)
{
    int value = 0;
    (void)sem_getvalue(semaphore, &value);
    return value == 0 && sem_post(semaphore) == 0;
}

BaseType_t xSemaphoreTake(SemaphoreHandle_t semaphore, TickType_t ticks)
{
    if (ticks != portMAX_DELAY) {
        exit(9);
    }
    while (sem_wait(semaphore) != 0) {
    }
    return 1;
}
